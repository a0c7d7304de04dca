"""The linter: what the figures of a summary must satisfy among themselves, whoever made them.

The audit replays records; the linter needs none, so that it also holds for runs measured elsewhere and for figures that
a server or a monitor gave. Each law speaks only where its figures are there.
"""

from collections.abc import Callable, Iterator

from scheduler_core.evidence.account import account
from scheduler_core.evidence.metrics.latency import LATENCIES
from scheduler_core.evidence.metrics.metric import shortest_for
from scheduler_core.evidence.metrics.registry import METRICS
from scheduler_core.evidence.schema import RunSummary, Violation

# Evidence level -> where its values come from. A modelled value is never written as a measured one.
SOURCES = {
    "simulation": "modelled",
    "cpu_kernels": "kernel",
    "gpu_kernels": "kernel",
    "external_server": "client",
    "imported": "imported",
}
_ROUNDING = 1e-6  # relative: means are sums of many floats
_HIDDEN = "hidden_work"  # runs beside the critical path, so it is no part of elapsed time

Found = Iterator[tuple[str, str]]


def lint(run: RunSummary) -> list[Violation]:
    """What is wrong with the summary: rule, figure or part of the summary, and the numbers."""
    return [Violation(rule=rule, where=where, message=message) for rule, law in LAWS for where, message in law(run)]


def linted(run: RunSummary) -> RunSummary:
    """The summary with the linter's findings in its audit."""
    found = lint(run)
    checks = {**run.audit.checks, **{rule: run.audit.checks.get(rule, 0) + 1 for rule, _ in LAWS}}
    violations = [*run.audit.violations, *found]
    passed = run.audit.passed and not found
    return run.model_copy(
        update={"audit": run.audit.model_copy(update={"passed": passed, "checks": checks, "violations": violations})}
    )


def _value(run: RunSummary, name: str) -> float | None:
    figure = run.metrics.get(name)
    return None if figure is None else figure.value


def _outcomes(run: RunSummary) -> Found:
    counted = account(run.offered, run.outcomes, run.unsent)
    if not counted.balanced:
        yield "outcomes", counted.sentence()


def _tpot(run: RunSummary) -> Found:
    """A mean of gaps is at most the longest of them, so every quantile is; a wait or a load inside TPOT breaks it."""
    for share in ("p50", "p95", "p99"):
        tpot, longest = _value(run, f"tpot_{share}_ms"), _value(run, f"longest_gap_{share}_ms")
        if tpot is not None and longest is not None and tpot > longest * (1 + _ROUNDING):
            yield f"tpot_{share}_ms", f"{tpot:g} ms a token, but the longest gap is {longest:g} ms"


def _exposed(run: RunSummary) -> Found:
    for part, whole in (("exposed_comm_ms", "communication_ms"), ("exposed_collective_ms", "collective_ms"),
                        ("exposed_comm_ms", "e2e_max_ms")):  # fmt: skip
        exposed, most = _value(run, part), _value(run, whole)
        if exposed is not None and most is not None and not 0 <= exposed <= most * (1 + _ROUNDING):
            yield part, f"{exposed:g} ms exposed, {whole} is {most:g} ms"


def _cold(run: RunSummary) -> Found:
    for name in ("ttft_mean_ms", "e2e_mean_ms"):
        figure = run.metrics.get(name)
        warm = run.offered - run.cold_requests
        if figure is not None and figure.n is not None and figure.n > warm:
            yield name, f"{figure.n} samples, but only {warm} of {run.offered} requests were warm"


def _parts(run: RunSummary) -> Found:
    """Over one population: what a server says of its own requests is no part of what its client saw."""
    elapsed = run.metrics.get("e2e_mean_ms")
    if elapsed is None or elapsed.value is None:
        return
    figures = [figure for name in _PARTS if (figure := run.metrics.get(f"{name}_mean_ms")) is not None]
    parts = [figure.value for figure in figures if figure.value is not None and not figure.note]
    if sum(parts) > elapsed.value * (1 + _ROUNDING) + _ROUNDING:
        yield "e2e_mean_ms", f"parts of time add up to {sum(parts):g} ms, elapsed are {elapsed.value:g} ms"


def _source(run: RunSummary) -> Found:
    if run.source not in SOURCES.values():
        yield "source", f"{run.source!r} is none of {', '.join(dict.fromkeys(SOURCES.values()))}"


def _level(run: RunSummary) -> Found:
    known = run.source in SOURCES.values()
    if known and SOURCES.get(run.level) != run.source:
        yield "level", f"level {run.level}, but its values are {run.source}"


def _hits(run: RunSummary) -> Found:
    figure = run.metrics.get("hit_rate")
    if run.source == "client" and figure is not None and figure.value is not None and not figure.n:
        yield "hit_rate", f"{figure.value:g} without a count of looked-up tokens"


def _reasons(run: RunSummary) -> Found:
    for outcome, count in run.outcomes.items():
        told = sum(n for reason, n in run.reasons.items() if reason.startswith(f"{outcome}: "))
        if outcome not in ("finished", "cut_off") and told < count:
            yield outcome, f"{count} requests {outcome.replace('_', ' ')}, {told} with a reason"


def _samples(run: RunSummary) -> Found:
    for name, figure in run.metrics.items():
        metric = METRICS.get(name)
        if metric is None or figure.value is None or figure.n is None:
            continue
        share = next((share for start, share in _TAILS.items() if metric.sample_rule.startswith(start)), None)
        if share is not None and figure.n < shortest_for(share):
            yield name, f"{figure.value:g} from {figure.n} samples, at least {shortest_for(share)} are needed"


_PARTS = tuple(name for name in LATENCIES if name not in ("ttft", "tpot", "tpot_steady", "longest_gap", "e2e", _HIDDEN))
_TAILS = {"p99": 0.99, "p95": 0.95}

LAWS: tuple[tuple[str, Callable[[RunSummary], Found]], ...] = (
    ("offered = outcomes", _outcomes),
    ("R5 TPOT is gaps alone", _tpot),
    ("R9 exposed within elapsed", _exposed),
    ("R10 cold apart", _cold),
    ("R11 overlap is not elapsed", _parts),
    ("R19 source", _source),
    ("R29 level", _level),
    ("R31 hits counted", _hits),
    ("R32 reason of every failure", _reasons),
    ("R35 enough samples", _samples),
)
