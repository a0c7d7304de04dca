"""Figures of starting and draining instances."""

from collections.abc import Callable

from scheduler_core.evidence.instances import PowerTotals
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


def _of(name: str, unit: str, formula: str, better: Better, value: Callable[[PowerTotals], float | None]) -> Metric:
    def compute(run: RunTables) -> Figure:
        if not run.power.scales:
            return absent(unit, Absence.NOT_APPLICABLE, "nothing scales in this run")
        found = value(run.power)
        return absent(unit, Absence.NOT_APPLICABLE, "nothing was started") if found is None else present(found, unit)

    return Metric(name, unit, formula, better, "pool", "one per run", compute)
