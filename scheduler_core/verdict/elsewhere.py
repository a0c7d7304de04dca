"""A verdict on result files of other tools: which files are whose, read, completed, and judged by the same rules."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from scheduler_core.evidence.imported.detect import detect_tool
from scheduler_core.evidence.imported.matched import matched
from scheduler_core.evidence.imported.measured import MeasuredRun, fill_absent
from scheduler_core.evidence.imported.readers import read_measured
from scheduler_core.evidence.imported.summary import imported_summary
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.spec.base import Name, Spec
from scheduler_core.spec.goal import GoalSpec
from scheduler_core.verdict.decide import decide_imported
from scheduler_core.verdict.schema import Verdict


class MeasuredSpec(Spec):
    """What is asked of results measured elsewhere; ``arms`` name their files, the first of each being repeat 1."""

    name: Name = "measured elsewhere"
    arms: dict[Name, tuple[str, ...]] = Field(min_length=2, max_length=16)
    baseline: str = Field("", description="Absent: the arm named baseline, or else the first.")
    tool: str | None = Field(None, description="The tool that wrote all files; absent: found out for each.")
    goal: GoalSpec = GoalSpec()

    @model_validator(mode="after")
    def _known_baseline(self) -> Self:
        if self.baseline and self.baseline not in self.arms:
            raise ValueError(f"baseline: there is no arm {self.baseline!r}; there are {', '.join(self.arms)}")
        if empty := [name for name, files in self.arms.items() if not files]:
            raise ValueError(f"arms: {', '.join(empty)} has no file")
        return self

    @property
    def compared_with(self) -> str:
        """The baseline's name."""
        return self.baseline or ("baseline" if "baseline" in self.arms else next(iter(self.arms)))


@dataclass(frozen=True)
class Judged:
    """The verdict with the summaries it was made from, and what a reader of the figures must know."""

    verdict: Verdict
    runs: tuple[RunSummary, ...]
    notes: tuple[str, ...]


def judge_measured(spec: MeasuredSpec, folder: Path) -> Judged:
    """Judge the files of ``spec``, names relative to ``folder``.

    Raises:
        InputError: a file cannot be read, is of no known tool or holds a bad row; says which and where.
    """
    read = {arm: [_read(folder / name, spec.tool) for name in files] for arm, files in spec.arms.items()}
    completed = _complete(read)
    runs = [
        imported_summary(run, name=f"{arm}-{repeat + 1}", arm=arm, repeat=repeat)
        for arm, measured in completed.items()
        for repeat, run in enumerate(measured)
    ]
    verdict = decide_imported(spec.name, runs, baseline=spec.compared_with, goal=spec.goal)
    return Judged(verdict, tuple(runs), tuple(_notes(completed, spec.compared_with)))


def _read(path: Path, tool: str | None) -> MeasuredRun:
    return read_measured(path, tool or detect_tool(path))


def _complete(read: Mapping[str, Sequence[MeasuredRun]]) -> dict[str, list[MeasuredRun]]:
    """Each repeat's runs with a failure in the places that a tool left out and the longest run of the repeat has."""
    longest: dict[int, MeasuredRun] = {}
    for runs in read.values():
        for repeat, run in enumerate(runs):
            if repeat not in longest or len(run.requests) > len(longest[repeat].requests):
                longest[repeat] = run
    return {arm: [fill_absent(run, longest[repeat]) for repeat, run in enumerate(runs)] for arm, runs in read.items()}


def _notes(runs: Mapping[str, Sequence[MeasuredRun]], baseline: str) -> list[str]:
    """Each run's notes, once per arm, and the matched differences of each pair (one run each, so no verdict)."""
    notes = [
        f"{arm}: {note}"
        for arm, measured in runs.items()
        for note in dict.fromkeys(note for run in measured for note in (f"read as {run.tool}", *run.notes))
    ]
    if len({len(measured) for measured in runs.values()}) > 1:
        counts = ", ".join(f"{arm} {len(measured)}" for arm, measured in runs.items())
        notes.append(f"numbers of files differ ({counts}): repeats that only one arm has enter no pair")
    for arm, measured in runs.items():
        if arm != baseline:
            for repeat, (base, run) in enumerate(zip(runs[baseline], measured, strict=False)):
                pair = matched(base, run)
                if pair is not None:
                    notes.append(f"{arm}, repeat {repeat + 1}: {pair.sentence()}")
    return notes
