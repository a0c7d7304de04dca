"""Figures that only a load client has: how it streamed, how evenly it sent, what it cost."""

from collections.abc import Iterable

from scheduler_core.evidence.columns import Ints
from scheduler_core.evidence.metrics.metric import Better, Metric, absent, present
from scheduler_core.evidence.schema import Absence, Figure
from scheduler_core.evidence.tables.run_tables import RunTables
from scheduler_core.types.time import NS_PER_S


def _client(name: str, unit: str, formula: str, better: Better) -> Metric:
    """A metric that a run against a server fills in from its client's records; elsewhere there is no client."""

    def compute(_run: RunTables) -> Figure:
        return absent(unit, Absence.NOT_APPLICABLE, "this target has no load client")

    return Metric(name, unit, formula, better, "run", "one per run", compute)


def client_metrics() -> Iterable[Metric]:
    """All of them."""
    yield _client("offered_rps", "requests/s", "(measured requests - 1) / first to last intended send time", "none")
    yield _client("sent_rps", "requests/s", "(measured requests - 1) / first to last real send time", "none")
    yield from _device_metrics()
    yield _client("client_retries", "count", "tries beyond the first of all requests", "none")
    yield _client("client_cpu_s", "s", "CPU time of the load client", "none")
    yield _client("client_busiest_share", "share", "most of a core that one of its processes used in a second", "none")
    yield _client("client_lag_p99_ms", "ms", "p99 of how late its event loop ran, worst process", "none")
    yield _client("client_real_time_share", "share", "its processes that were scheduled in real time all along / all",
                  "none")  # fmt: skip


def rate(times_ns: Ints) -> Figure:
    """Requests per second of those sent at ``times_ns``, from the first to the last."""
    span_ns = int(times_ns.max() - times_ns.min()) if len(times_ns) else 0
    if span_ns <= 0:
        return absent("requests/s", Absence.NOT_APPLICABLE, "fewer than two send times")
    return present((len(times_ns) - 1) * NS_PER_S / span_ns, "requests/s", len(times_ns))


def _device_metrics() -> Iterable[Metric]:
    """Of the devices under a server, where a monitor of them is a metric source."""
    looked = "over looks of the device monitor within the measured window"
    yield _client("device_busy_mean_share", "share", f"time-weighted mean share of time in which devices ran, {looked}",
                  "none")  # fmt: skip
    yield _client("device_memory_peak_bytes", "bytes", f"most device memory in use, {looked}", "lower")
    yield _client("device_power_mean_w", "W", f"time-weighted mean power of all devices, {looked}", "lower")
    yield _client("device_energy_j", "J", "growth of the devices' energy counters from the window's start to the last "
                  "look", "lower")  # fmt: skip
    yield _client("energy_per_token_j", "J", "device_energy_j / output tokens that the server counted in that time",
                  "lower")  # fmt: skip
