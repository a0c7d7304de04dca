"""Figures and decision of an experiment in Prometheus's text format, for a text-file collector or a push gateway."""

from collections.abc import Iterator, Sequence

from scheduler_core.evidence.metrics.registry import METRICS
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.verdict.schema import Verdict

PREFIX = "headway_"
DECISIONS = ("accept", "tune", "reject", "not_comparable")


def prometheus(verdict: Verdict, runs: Sequence[RunSummary]) -> str:
    """One gauge a figure, labelled by experiment, arm and repeat; what is absent has no sample, never a 0."""
    return "\n".join([*_figures(verdict.experiment, runs), *_decisions(verdict)]) + "\n"


def _figures(experiment: str, runs: Sequence[RunSummary]) -> Iterator[str]:
    for name, metric in METRICS.items():
        found = [(run, figure.value) for run in runs if (figure := run.metrics.get(name)) is not None]
        samples = [
            f"{PREFIX}{name}{{{_labels(experiment=experiment, arm=run.arm, repeat=str(run.repeat + 1))}}} {value}"
            for run, value in found
            if value is not None
        ]
        if samples:
            yield f"# HELP {PREFIX}{name} {_escaped(metric.formula)} ({metric.unit})"
            yield f"# TYPE {PREFIX}{name} gauge"
            yield from samples


def _decisions(verdict: Verdict) -> Iterator[str]:
    yield f"# HELP {PREFIX}decision 1 for the answer that was given, 0 for the others"
    yield f"# TYPE {PREFIX}decision gauge"
    for item in verdict.comparisons:
        answer = item.decision.value if item.decision is not None else DECISIONS[-1]
        for decision in DECISIONS:
            labels = _labels(experiment=verdict.experiment, candidate=item.candidate, decision=decision)
            yield f"{PREFIX}decision{{{labels}}} {int(decision == answer)}"


def _labels(**labels: str) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
