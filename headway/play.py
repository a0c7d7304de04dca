"""Local play: an experiment from file to verdict in this process, with no server, database or network.

Reading, freezing, serving, evidence and verdict are the product's own; only queue and storage are left out.
"""

import tempfile
from collections.abc import Callable, Container
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway import profiles
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.policies.manifests import resolve_arms
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.job import Message, ProgressMessage, RunJob
from scheduler_core.spec.parse import parse
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.target import Profile
from scheduler_core.spec.workload import WorkloadSpec
from scheduler_core.types.errors import HeadwayError, InputError, Problem
from scheduler_core.verdict.schema import Verdict
from scheduler_core.verdict.sequential import Further, further
from scheduler_core.workload.plan import ArrivalPlan


class PlayError(HeadwayError):
    """No run succeeded, so there is nothing to judge."""


@dataclass(frozen=True)
class Step:
    """Where a play stands: run ``number`` of ``total``, and its requests ended so far."""

    number: int
    total: int
    arm: str
    repeat: int
    done: int
    requests: int


@dataclass
class Played:
    """What a play found."""

    experiment: ExperimentSpec
    policies: dict[str, PolicySpec]
    plan: ArrivalPlan
    profile: Profile | None
    notes: list[str]
    runs: list[RunSummary] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    verdict: Verdict | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain data, as ``headway play --json`` prints it."""
        return {
            "experiment": self.experiment.canonical(),
            "plan_digest": self.plan.digest,
            "profile": None if self.profile is None else self.profile.canonical(),
            "notes": self.notes,
            "runs": [run.canonical() for run in self.runs],
            "failures": self.failures,
            "verdict": None if self.verdict is None else self.verdict.canonical(),
        }


def read_plan(spec: WorkloadSpec, base: Path) -> ArrivalPlan:
    """The frozen plan of a workload; a trace file's relative path is taken from ``base``."""
    from scheduler_core.workload.freeze import freeze
    from scheduler_core.workload.traces.reader import read_trace

    if spec.trace is None:
        return freeze(spec)
    if spec.trace.file is None:
        raise InputError(
            [Problem("workload.trace.dataset", "a dataset lives on a server; write file: PATH to play it here")]
        )
    path = (base / Path(spec.trace.file).expanduser()).resolve()
    if not path.is_file():
        raise InputError([Problem("workload.trace.file", f"there is no file {path}")])
    return freeze(spec, trace=read_trace(path, spec.trace))


def play(spec: ExperimentSpec, *, base: Path, on_step: Callable[[Step], None], evidence: Path | None = None) -> Played:
    """Play every run of ``spec`` in its order and judge them.

    Args:
        spec: The experiment.
        base: Folder from which a trace file's relative path is taken.
        on_step: Told whenever a run starts or requests end.
        evidence: Folder for records, tables and summaries; absent: they are dropped at the end.

    Raises:
        InputError: the workload or profile cannot be had.
        PlayError: no run succeeded.
    """
    plan = read_plan(spec.workload, base)
    profile, notes = _profile(spec)
    played = Played(spec, resolve_arms(spec, profile), plan, profile, [*plan.notes, *notes])
    with ExitStack() as stack:
        folder = evidence or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headway-play-")))
        folder.mkdir(parents=True, exist_ok=True)
        plan.write(folder / "plan.jsonl.gz")
        done = 0
        more: Further | None = Further(spec.first_pairs(), frozenset(spec.arms))
        while more:
            _repeats(played, range(done, more.pairs), more.arms, folder, on_step)
            played.verdict = _decide(spec, played.runs, folder)
            done, more = more.pairs, further(spec.goal.looks, more.pairs, played.verdict)
    return played


def _repeats(
    played: Played, repeats: range, arms: Container[str], folder: Path, on_step: Callable[[Step], None]
) -> None:
    """Play the runs of ``repeats`` that ``arms`` have in them, in turn."""
    spec, requests = played.experiment, len(played.plan.requests)
    before = repeats.start * len(spec.arms)
    runs = spec.runs(repeats)
    for number, (repeat, arm) in enumerate(runs, start=before + 1):
        if arm in arms:
            _run(played, Step(number, before + len(runs), arm, repeat, 0, requests), folder, on_step)
    if not played.runs:
        raise PlayError(f"no run succeeded; the first: {played.failures[0]['reason']}")


def _profile(spec: ExperimentSpec) -> tuple[Profile | None, list[str]]:
    if spec.target.modelled is None:
        return None, []
    profile, origin = profiles.choose(spec.target.modelled.profile)
    return profile, [f"profile {profile.name} ({origin}): {profile.model} on {profile.device}"]


def _run(played: Played, where: Step, folder: Path, on_step: Callable[[Step], None]) -> None:
    from gpu_runner.run.compose import execute

    def emit(message: Message) -> None:
        if isinstance(message, ProgressMessage):
            on_step(Step(where.number, where.total, where.arm, where.repeat, message.done, message.total))

    on_step(where)
    result = execute(_job(played, where, folder), emit, lambda: False)
    if result.outcome == "succeeded" and result.summary is not None:
        played.runs.append(parse(RunSummary, result.summary))
    else:
        played.failures.append({"arm": where.arm, "repeat": where.repeat, "reason": result.reason})


def _job(played: Played, where: Step, folder: Path) -> RunJob:
    spec = played.experiment
    return RunJob(
        run=f"{where.arm}-{where.repeat + 1}",
        arm=where.arm,
        repeat=where.repeat,
        plan_file=str(folder / "plan.jsonl.gz"),
        policy=played.policies[where.arm],
        target=spec.target,
        profile=played.profile,
        tiers=spec.workload.tiers,
        warmup_share=spec.workload.warmup_share,
        workdir=str(folder / f"run-{where.number:03d}"),
        noise_seed=spec.noise_seed(arm=where.arm, repeat=where.repeat),
        wall_limit_s=spec.run_limit_s,
    )


def _decide(spec: ExperimentSpec, runs: list[RunSummary], folder: Path) -> Verdict:
    from scheduler_core.verdict.decide import decide
    from scheduler_core.verdict.outputs import read_outputs

    order = spec.runs(range(1 + max(run.repeat for run in runs)))
    folders = {f"{arm}-{repeat + 1}": folder / f"run-{n:03d}" for n, (repeat, arm) in enumerate(order, start=1)}
    return decide(spec, runs, outputs=lambda run: read_outputs(folders[run] / "outputs.parquet"))
