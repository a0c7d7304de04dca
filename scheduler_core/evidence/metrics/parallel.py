"""Figures of instances that are spread over devices."""

from collections.abc import Callable

from scheduler_core.evidence.fold.spread import SpreadTotals
from scheduler_core.evidence.metrics.metric import Better, Metric, absent, defined
from scheduler_core.evidence.schema import Absence, Figure
from scheduler_core.evidence.tables.run_tables import RunTables
from scheduler_core.types.time import NS_PER_MS

Value = Callable[[SpreadTotals], float | None]


def parallel_metrics() -> list[Metric]:
    """The metrics of collectives, pipelines, replicas and experts; where an instance is one device they do not apply.

    Of a device means of an average one, summed over the steps of the window and the instances.
    """
    return [
        _time("collective_ms", "collectives and handing on between stages, of a device", "lower", "communication_ns"),
        _time("hidden_collective_ms", "part of collective_ms beside which another half of the step was computed",
              "none", "hidden_comm_ns"),
        _spread("exposed_collective_ms", "ms", "collective_ms - hidden_collective_ms: what steps are longer by",
                "lower", lambda t: _ms(t, "communication_ns") - _ms(t, "hidden_comm_ns")),
        _spread("collective_overlap_ratio", "share", "hidden / all time of collectives, instance scope; it is a gain "
                "only where steps get shorter", "none",
                lambda t: _ratio(t.sums["hidden_comm_ns"], t.sums["communication_ns"])),
        _time("bubble_ms", "waiting for other stages of the pipeline, of a device", "lower", "bubble_ns"),
        _time("rank_wait_ms", "waiting for the most loaded attention replica, of a device", "lower", "rank_wait_ns"),
        _time("expert_wait_ms", "waiting for the place with the most popular experts, of a device", "lower",
              "expert_wait_ns"),
        _expert("expert_load_imbalance", "x", "most tokens of an expert / mean over experts, of a step, after drops; "
                "mean over steps", lambda t: t.imbalance / t.routed if t.routed else None),
        _expert("expert_dropped_tokens", "tokens", "choices of experts that were dropped because the expert was full",
                lambda t: float(t.sums["expert_dropped"])),
        _expert("expert_dropped_share", "share", "dropped / all choices of experts",
                lambda t: _ratio(t.sums["expert_dropped"], t.sums["expert_tokens"])),
    ]  # fmt: skip


def _ms(totals: SpreadTotals, name: str) -> float:
    return totals.sums[name] / NS_PER_MS


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _time(name: str, formula: str, better: Better, column: str) -> Metric:
    return _spread(name, "ms", formula, better, lambda totals: _ms(totals, column))


def _expert(name: str, unit: str, formula: str, value: Value) -> Metric:
    def of(totals: SpreadTotals) -> float | None:
        return value(totals) if totals.sums["experts"] else None

    return _spread(name, unit, formula, "lower", of, "nobody counted who chose which expert")


def _spread(
    name: str, unit: str, formula: str, better: Better, value: Value, why: str = "nothing to divide by"
) -> Metric:
    def compute(run: RunTables) -> Figure:
        totals = run.steps.spread
        if not totals.steps:
            return absent(unit, Absence.NOT_APPLICABLE, "each instance is one device")
        return defined(value(totals), unit, why)

    return Metric(name, unit, formula, better, "pool", "one per run", compute)
