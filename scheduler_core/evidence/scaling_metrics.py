"""Figures of starting and draining instances."""

from collections.abc import Callable

from scheduler_core.evidence.instances import OutageTotals, PowerTotals
from scheduler_core.evidence.metric import Better, Metric, absent, present
from scheduler_core.evidence.run_tables import RunTables
from scheduler_core.evidence.schema import Absence, Figure
from scheduler_core.types.time import NS_PER_MS


def scaling_metrics() -> list[Metric]:
    """The metrics of scaling, and the device time of any run."""
    return [
        Metric("device_hours", "h", "time for which devices were held in the window, from the beginning of a start to "
               "the end of a drain", "lower", "pool", "one per run",
               lambda run: present(run.device_s / 3600, "h")),
        _of("scale_out_latency_ms", "ms", "decision to start an instance to its being on, mean over finished starts",
            "lower", lambda t: t.start_ns / NS_PER_MS / t.started if t.started else None),
        _of("scale_outs", "count", "instances started", "none", lambda t: float(t.starts)),
        _of("scale_ins", "count", "instances drained", "none", lambda t: float(t.drains)),
        _of("scale_reversals", "count", "starts that followed a drain, and drains that followed a start: oscillation",
            "lower", lambda t: float(t.reversals)),
    ]  # fmt: skip


def outage_metrics() -> list[Metric]:
    """The metrics of instances that died."""
    return [
        _outage("instance_deaths", "count", "instances that died with everything on them", "none",
                lambda t: float(t.deaths)),
        _outage("requests_lost", "count", "requests that were on an instance when its death was noticed", "lower",
                lambda t: float(t.lost)),
        _outage("tokens_lost", "tokens", "KV positions lost with instances that died: to be computed again", "lower",
                lambda t: float(t.tokens_lost)),
        _outage("recovery_ms", "ms", "death of an instance to the next token (or the end) of the last request that was "
                "on it, mean over deaths that lost any", "lower",
                lambda t: t.recovery_ns / NS_PER_MS / t.recovered if t.recovered else None),
    ]  # fmt: skip


def _outage(
    name: str, unit: str, formula: str, better: Better, value: Callable[[OutageTotals], float | None]
) -> Metric:
    def compute(run: RunTables) -> Figure:
        if not run.outages.deaths:
            return absent(unit, Absence.NOT_APPLICABLE, "no instance died")
        found = value(run.outages)
        return absent(unit, Absence.NOT_APPLICABLE, "no request was lost") if found is None else present(found, unit)

    return Metric(name, unit, formula, better, "pool", "one per run", compute)


def _of(name: str, unit: str, formula: str, better: Better, value: Callable[[PowerTotals], float | None]) -> Metric:
    def compute(run: RunTables) -> Figure:
        if not run.power.scales:
            return absent(unit, Absence.NOT_APPLICABLE, "nothing scales in this run")
        found = value(run.power)
        return absent(unit, Absence.NOT_APPLICABLE, "nothing was started") if found is None else present(found, unit)

    return Metric(name, unit, formula, better, "pool", "one per run", compute)
