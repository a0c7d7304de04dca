"""Figures of what moved between instances."""

from collections.abc import Callable

from scheduler_core.evidence.fold.handoffs import HandoffTotals, MigrationTotals
from scheduler_core.evidence.metrics.metric import Better, Metric, absent, defined, present
from scheduler_core.evidence.schema import Absence, Figure
from scheduler_core.evidence.tables.run_tables import RunTables
from scheduler_core.types.time import NS_PER_MS


def handoff_metrics() -> list[Metric]:
    """The metrics of handoffs; where no request changes its instance they do not apply."""
    return [
        _of("handoff_ms", "ms", "KV ready at the source to usable at the destination, mean over transfers that landed",
            "lower", lambda t: t.span_ns / NS_PER_MS / t.landed if t.landed else None),
        _of("transfer_bytes", "bytes", "KV bytes moved between instances", "lower", lambda t: float(t.bytes)),
        _of("network_wait_ms", "ms", "part of handoff_ms in which bytes waited for a link that others used, or for "
            "word that they had moved, mean over transfers that landed", "lower",
            lambda t: t.network_wait_ns / NS_PER_MS / t.landed if t.landed else None),
        _of("communication_ms", "ms", "union of a request's transfers, waits for the link left out, mean over those "
            "that landed", "lower",
            lambda t: t.communication_ns / NS_PER_MS / t.landed if t.landed else None),
        _of("exposed_comm_ms", "ms", "part of communication_ms after the request's own prefill", "lower",
            lambda t: t.exposed_ns / NS_PER_MS / t.landed if t.landed else None),
        _of("overlap_ratio", "share", "hidden / communication, request scope", "higher",
            lambda t: 1 - t.exposed_ns / t.communication_ns if t.communication_ns else None),
        _of("handoff_fallback_share", "share", "handoffs in which the first choice was not possible / all", "lower",
            lambda t: sum(t.fallbacks.values()) / t.decided.total() if t.decided else None),
        _of("route_hit_share", "share", "handoffs carried out as first chosen / all", "higher",
            lambda t: 1 - sum(t.fallbacks.values()) / t.decided.total() if t.decided else None),
        _of("transfer_failure_share", "share", "transfers that broke off / transfers decided", "lower",
            lambda t: t.failed / t.decided["transfer"] if t.decided["transfer"] else None),
        _leased("transfer_leases", "transfers given up with bytes under way, whose blocks were held at both sides",
                lambda t: t.leases),
        _leased("transfer_leases_expired", "leases that ended without word of their bytes: blocks free after the "
                "timeout", lambda t: t.leases_expired),
    ]  # fmt: skip


def _leased(name: str, formula: str, value: Callable[[HandoffTotals], int]) -> Metric:
    def compute(run: RunTables) -> Figure:
        if not run.handoffs.leases:
            return absent("count", Absence.NOT_APPLICABLE, "no transfer was given up with bytes under way, or held")
        return present(float(value(run.handoffs)), "count")

    return Metric(name, "count", formula, "lower", "pool", "one per run", compute)


def migration_metrics() -> list[Metric]:
    """The metrics of live migration; where nothing migrates they do not apply."""
    return [
        _migrated("migrations", "count", "requests that moved to another instance while they decoded", "none",
                  lambda m: float(m.landed)),
        _migrated("migrations_dropped", "count", "migrations that were given up; the request ran on at its source",
                  "lower", lambda m: float(m.dropped.total())),
        _migrated("migration_ms", "ms", "first copy to landing of a migrated request, mean", "lower",
                  lambda m: m.span_ns / NS_PER_MS / m.landed if m.landed else None),
        _migrated("migration_stop_ms", "ms", "part of migration_ms in which the request did not decode, mean", "lower",
                  lambda m: m.stopped_ns / NS_PER_MS / m.landed if m.landed else None),
        _migrated("migration_bytes", "bytes", "KV bytes copied by migrations, dropped ones included", "lower",
                  lambda m: float(m.bytes)),
        _reassigned("requests_reassigned", "count", "requests that waited and were taken to another instance, because "
                    "theirs had been saturated for long", "none", lambda t: float(t.reassigned_count)),
        _reassigned("reassignment_ms", "ms", "a reassigned request's time between the two queues, mean", "lower",
                    lambda t: t.reassigned_ns / NS_PER_MS / t.reassigned_count),
        _fetched("prefixes_fetched", "count", "requests that had the beginning of their prompt fetched from another "
                 "instance", "none", lambda t: float(t.fetched)),
        _fetched("prefix_fetch_ms", "ms", "a request's wait for a beginning that was fetched, mean", "lower",
                 lambda t: t.fetched_ns / NS_PER_MS / t.fetched),
        _fetched("prefix_fetch_bytes", "bytes", "KV bytes of beginnings that were fetched", "lower",
                 lambda t: float(t.fetched_bytes)),
    ]  # fmt: skip


def _fetched(name: str, unit: str, formula: str, better: Better, value: Callable[[HandoffTotals], float]) -> Metric:
    def compute(run: RunTables) -> Figure:
        if not run.handoffs.fetched:
            return absent(unit, Absence.NOT_APPLICABLE, "no beginning of a prompt was fetched")
        return present(value(run.handoffs), unit)

    return Metric(name, unit, formula, better, "pool", "one per run", compute)


def _reassigned(name: str, unit: str, formula: str, better: Better, value: Callable[[HandoffTotals], float]) -> Metric:
    def compute(run: RunTables) -> Figure:
        if not run.handoffs.reassigned_count:
            return absent(unit, Absence.NOT_APPLICABLE, "no request was reassigned")
        return present(value(run.handoffs), unit)

    return Metric(name, unit, formula, better, "pool", "one per run", compute)


def _migrated(
    name: str, unit: str, formula: str, better: Better, value: Callable[[MigrationTotals], float | None]
) -> Metric:
    def compute(run: RunTables) -> Figure:
        totals = run.handoffs.migrations
        if not totals.started:
            return absent(unit, Absence.NOT_APPLICABLE, "no request migrated")
        return defined(value(totals), unit, "no migration landed")

    return Metric(name, unit, formula, better, "pool", "one per run", compute)


def _of(name: str, unit: str, formula: str, better: Better, value: Callable[[HandoffTotals], float | None]) -> Metric:
    def compute(run: RunTables) -> Figure:
        totals = run.handoffs
        if not totals.decided:
            return absent(unit, Absence.NOT_APPLICABLE, "no request moved between instances")
        return defined(value(totals), unit, "nothing to divide by")

    return Metric(name, unit, formula, better, "pool", "one per run", compute)
