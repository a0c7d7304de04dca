"""Figures of starting and draining instances."""

from collections.abc import Callable

import numpy as np

from scheduler_core.evidence.fold.instances import OutageTotals, PoolTotals, PowerTotals
from scheduler_core.evidence.metrics.metric import Better, Metric, absent, defined, present, quantile_rule, tail
from scheduler_core.evidence.schema import Absence, Figure
from scheduler_core.evidence.tables.run_tables import RunTables
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
        _ttft("ttft_starting_p95_ms", "who arrived while an instance was starting", starting=True),
        _ttft("ttft_settled_p95_ms", "who arrived while none was starting", starting=False),
        _of("scale_reversals", "count", "starts that followed a drain, and drains that followed a start: oscillation",
            "lower", lambda t: float(t.reversals)),
    ]  # fmt: skip


def _ttft(name: str, whose: str, *, starting: bool) -> Metric:
    """Cold and warm apart: what starting instances came too late for, and what the warm ones do by themselves."""

    def compute(run: RunTables) -> Figure:
        if not run.power.starts:
            return absent("ms", Absence.NOT_APPLICABLE, "no instance was started")
        requests, arrived = run.requests, run.requests.rows["arrival_ns"]
        during = np.zeros(len(requests), dtype=np.bool_)
        for began, ended in run.power.spans(run.window.end_ns):
            during |= (arrived >= began) & (arrived < ended)
        rows = requests.warm_finished & (during == starting)
        return tail(np.sort(requests.columns["ttft_ms"].values[rows]), 0.95)

    formula = f"p95, linear interpolation, over warm finished measured requests, of the time to first token of {whose}"
    return Metric(name, "ms", formula, "lower", "request", quantile_rule(0.95), compute)


def pool_metrics() -> list[Metric]:
    """The metrics of instances that change their pool."""
    return [
        _pooled("instances_lent", "count", "times that an instance was lent to another pool", "none",
                lambda t: float(t.lent)),
        _pooled("lent_ms", "ms", "lending of an instance to its being idle and home again, mean over those that went "
                "home", "none", lambda t: t.lent_ns / NS_PER_MS / t.returned if t.returned else None),
        _pooled("pool_moves", "count", "instances that moved from prefill to decode or back", "none",
                lambda t: float(t.moved)),
        _pooled("pool_move_ms", "ms", "decision to move an instance to another pool to its being empty and there, mean",
                "lower", lambda t: t.move_ns / NS_PER_MS / t.moved if t.moved else None),
        _pooled("pool_reversals", "count", "moves between prefill and decode that followed one the other way: "
                "oscillation", "lower", lambda t: float(t.reversals)),
        Metric("tier_overflows", "count", "requests that went to an instance that is not their tier's own", "lower",
               "pool", "one per run", _overflows),
    ]  # fmt: skip


def _overflows(run: RunTables) -> Figure:
    if not (run.started.policy.get("pools") or {}).get("tiers"):
        return absent("count", Absence.NOT_APPLICABLE, "no tier has instances of its own")
    return present(float(run.pools.overflows), "count")


def _pooled(name: str, unit: str, formula: str, better: Better, value: Callable[[PoolTotals], float | None]) -> Metric:
    def compute(run: RunTables) -> Figure:
        if not run.pools.changes:
            return absent(unit, Absence.NOT_APPLICABLE, "no instance changed its pool")
        return defined(value(run.pools), unit, "none got there before the end")

    return Metric(name, unit, formula, better, "pool", "one per run", compute)


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
        return defined(value(run.outages), unit, "no request was lost")

    return Metric(name, unit, formula, better, "pool", "one per run", compute)


def _of(name: str, unit: str, formula: str, better: Better, value: Callable[[PowerTotals], float | None]) -> Metric:
    def compute(run: RunTables) -> Figure:
        if not run.power.scales:
            return absent(unit, Absence.NOT_APPLICABLE, "nothing scales in this run")
        return defined(value(run.power), unit, "nothing was started")

    return Metric(name, unit, formula, better, "pool", "one per run", compute)
