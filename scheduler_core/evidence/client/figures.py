"""Figures of a run against a server: what the client measured, what the server exported, and what nobody could."""

from dataclasses import dataclass

from scheduler_core.evidence.client.fold import ClientFold
from scheduler_core.evidence.client.observations import Observations
from scheduler_core.evidence.metrics.client import rate
from scheduler_core.evidence.metrics.cost import COST_FIGURES
from scheduler_core.evidence.metrics.metric import absent, present
from scheduler_core.evidence.metrics.registry import METRICS
from scheduler_core.evidence.schema import Absence, Figure
from scheduler_core.evidence.tables.run_tables import RunTables
from scheduler_core.types.time import NS_PER_MS, Ns

# Fields and figures that a client's own stamps can give.
MEASURABLE = ("ttft", "tpot", "tpot_steady", "longest_gap", "e2e", "itl", "chunk_gap", "send_delay")
RUN_FIGURES = (
    "throughput_tokens_per_s", "throughput_peak_tokens_per_s", "throughput_finished_tokens_per_s",
    "throughput_requests_per_s", "goodput_rps", "attainment_share", "completion_share", "rejection_share",
    "timeout_share", "failure_share", "cut_off_share", "window_s", "stall_share", "decode_jitter_ms",
    "cold_ttft_mean_ms", "chunk_tokens_mean", *COST_FIGURES,
)  # fmt: skip
SERVER_NOTE = "from the server's metrics"
NOT_EXPORTED = "no metric source exports it"
UNSEEN = "happens inside the server, which a client does not see"


@dataclass(frozen=True)
class Span:
    """The measured window on the run's clock."""

    start_ns: Ns
    end_ns: Ns


def client_figures(tables: RunTables, fold: ClientFold) -> dict[str, Figure]:
    """Every metric of the registry, with a value or the reason why there is none."""
    window = tables.window
    span = Span(window.start_ns or 0, max(window.end_ns, window.start_ns or 0))
    from_server = _observed(fold.observations, span)
    told = bool((tables.requests.rows["queue_told"] > 0).any())
    if told:
        del from_server["queue_wait_mean_ms"]  # what each answer said decides, a histogram only cross-checks
    figures: dict[str, Figure] = {}
    for name, metric in METRICS.items():
        if name in from_server:
            figures[name] = from_server[name]
        elif measured_by_client(name) or (told and name.startswith("queue_wait")):
            figures[name] = metric.compute(tables)
        else:
            figures[name] = absent(metric.unit, Absence.NOT_MEASURED, UNSEEN)
    figures |= _of_client(fold) | _of_sending(tables)
    if fold.loads:
        took = sum(load.end_ns - load.start_ns for load in fold.loads)
        figures["model_load_ms"] = present(took / NS_PER_MS, "ms", len(fold.loads), "from launch to ready")
    return figures


def measured_by_client(name: str) -> bool:
    """Whether a metric needs nothing but a client's stamps."""
    if name in RUN_FIGURES:
        return True
    stems = tuple(f"{field}_{kind}" for field in MEASURABLE for kind in ("p50", "p95", "p99", "mean", "max"))
    return name.startswith(stems) and name != "itl_mean_ms"


def _observed(seen: Observations, span: Span) -> dict[str, Figure]:
    """Figures that a server's metric pages can give."""
    level = _Levels(seen, span)
    share = level.most("kv_share")
    blocks = level.most("kv_used")
    return {
        "queue_length_mean": _figure(level.mean("waiting"), "requests"),
        "queue_length_max": _figure(level.most("waiting"), "requests"),
        "running_max": _figure(level.most("running"), "requests"),
        "kv_peak_share": _figure(share, "share"),
        "kv_used_mean_share": _figure(level.mean("kv_share"), "share"),
        "peak_kv_blocks": _figure(blocks, "blocks"),
        "hit_rate": _ratio(seen, span, "cache_hits", "cache_lookups"),
        "preemptions": _figure(seen.growth("preemptions", span.start_ns), "count"),
        "queue_wait_mean_ms": _mean_ms(seen, span, "queue"),
        "prefill_mean_ms": _mean_ms(seen, span, "prefill"),
        "decode_mean_ms": _mean_ms(seen, span, "decode"),
        "handoff_ms": _mean_ms(seen, span, "transfer"),
        "transfer_bytes": _figure(seen.growth("transfer_bytes", span.start_ns), "bytes"),
        **_of_devices(seen, level, span),
    }


def _of_devices(seen: Observations, level: "_Levels", span: Span) -> dict[str, Figure]:
    """What a monitor of the devices gives; energy is set against the tokens that the server itself counted."""
    energy, tokens = seen.growth("device_energy_j", span.start_ns), seen.growth("output_tokens", span.start_ns)
    found = {
        "device_busy_mean_share": _figure(level.mean("device_busy_share"), "share"),
        "device_memory_peak_bytes": _figure(level.most("device_memory_bytes"), "bytes"),
        "device_power_mean_w": _figure(level.mean("device_power_w"), "W"),
        "device_energy_j": _figure(energy, "J"),
        "energy_per_token_j": _figure(energy / tokens if energy is not None and tokens else None, "J"),
    }
    return {name: _monitored(figure) for name, figure in found.items()}


def _monitored(figure: Figure) -> Figure:
    if figure.value is None:
        return absent(figure.unit, Absence.UNSUPPORTED, "no monitor of the devices gave it")
    return present(figure.value, figure.unit, note="from a monitor of the devices")


@dataclass(frozen=True)
class _Levels:
    seen: Observations
    span: Span

    def mean(self, name: str) -> float | None:
        return self.seen.mean(name, self.span.start_ns, self.span.end_ns)

    def most(self, name: str) -> float | None:
        return self.seen.most(name, self.span.start_ns, self.span.end_ns)


def _figure(value: float | None, unit: str) -> Figure:
    return absent(unit, Absence.UNSUPPORTED, NOT_EXPORTED) if value is None else present(value, unit, note=SERVER_NOTE)


def _ratio(seen: Observations, span: Span, part: str, whole: str) -> Figure:
    found, of = seen.growth(part, span.start_ns), seen.growth(whole, span.start_ns)
    if found is None or of is None:
        return absent("share", Absence.UNSUPPORTED, NOT_EXPORTED)
    if of <= 0:
        return absent("share", Absence.NOT_APPLICABLE, "the server looked nothing up")
    return present(found / of, "share", round(of), SERVER_NOTE)


def _mean_ms(seen: Observations, span: Span, name: str) -> Figure:
    seconds, count = seen.growth(f"{name}_s", span.start_ns), seen.growth(f"{name}_n", span.start_ns)
    if seconds is None or count is None:
        return absent("ms", Absence.UNSUPPORTED, NOT_EXPORTED)
    if count <= 0:
        return absent("ms", Absence.NOT_APPLICABLE, "the server counted none")
    return present(seconds * 1e3 / count, "ms", round(count), f"{SERVER_NOTE}, a mean over its histogram")


def _of_client(fold: ClientFold) -> dict[str, Figure]:
    """What the load client itself needed; absent when the run ended before it could say."""
    effort = fold.effort
    units = {
        "client_busiest_share": "share", "client_cpu_s": "s", "client_lag_p99_ms": "ms", "client_retries": "count",
        "client_real_time_share": "share",
    }  # fmt: skip
    if effort is None:
        return {name: absent(unit, Absence.FAILED, "the run ended first") for name, unit in units.items()}
    told = effort.real_time_processes
    real_time = told / effort.processes if told is not None and effort.processes else None
    values = (effort.busiest_share, effort.cpu_s, effort.lag_p99_ns / NS_PER_MS, float(effort.retries), real_time)
    return {
        name: absent(unit, Absence.NOT_MEASURED, "the client did not say") if value is None else present(value, unit)
        for (name, unit), value in zip(units.items(), values, strict=True)
    }


def _of_sending(tables: RunTables) -> dict[str, Figure]:
    """Asked and achieved rate over the measured requests."""
    requests = tables.requests
    tried = requests.measured & (requests.rows["tries"] > 0)
    due = requests.rows["arrival_ns"][requests.measured]
    sent = (requests.rows["arrival_ns"] + requests.rows["send_delay_ns"])[tried]
    return {"offered_rps": rate(due), "sent_rps": rate(sent)}
