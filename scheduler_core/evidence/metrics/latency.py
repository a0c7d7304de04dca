"""Latency figures: quantiles, means and maxima of the request fields, plain and censored."""

from collections.abc import Iterable

from scheduler_core.evidence.metrics.metric import Metric, absent, present, quantile_rule, tail
from scheduler_core.evidence.schema import Absence, Figure
from scheduler_core.evidence.tables.run_tables import RunTables

# Fields of which quantiles and means are made: what they are, in words.
LATENCIES: dict[str, str] = {
    "ttft": "arrival to first token available",
    "tpot": "(last token - first token) / (output tokens - 1); undefined for one token",
    "tpot_steady": "TPOT without the first gap; undefined below three tokens",
    "longest_gap": "longest wait between two tokens of a request",
    "e2e": "arrival to last token available",
    "send_delay": "intended send time to sent, by a load client",
    "queue_wait": "arrival to the first step that granted it, less model load inside",
    "requeue_wait": "waiting after preemptions",
    "stalled": "resident but granted nothing",
    "input_prepare": "host planning before the compute of its steps",
    "input_transfer": "copying its input to the device",
    "prefill": "compute of its prefill steps",
    "decode": "compute of its decode steps",
    "recompute": "prefill executed again",
    "output_transfer": "copying its output from the device",
    "stream_output": "token ready to handed to the caller",
    "host_gap": "the driver's work between two steps",
    "hidden_work": "work of its steps that ran beside other work, off its critical path",
    "unattributed": "elapsed time that no interval covers",
}
_QUANTILES = (0.5, 0.95, 0.99)
_WITH_QUANTILES = (
    "ttft",
    "tpot",
    "tpot_steady",
    "longest_gap",
    "e2e",
    "send_delay",
    "queue_wait",
    "requeue_wait",
    "stalled",
)
# Gates read these through their censored twins, so that an arm never wins by not finishing.
CENSORED = ("ttft", "tpot", "longest_gap", "e2e", "queue_wait")


def censored_name(metric: str) -> str | None:
    """Name of the censored twin of a latency quantile, or None where there is none (pooled gaps, rates, peaks)."""
    stem, _, tail = metric.removesuffix("_ms").rpartition("_p")
    return f"{stem}_p{tail}_censored_ms" if stem in CENSORED and tail.isdigit() else None


def _latency_quantile(field: str, share: float) -> Metric:
    def compute(run: RunTables) -> Figure:
        return tail(run.sorted_ms(f"{field}_ms"), share)

    name = f"{field}_p{share * 100:.0f}_ms"
    formula = f"p{share * 100:.0f}, linear interpolation, over warm finished measured requests, of: {LATENCIES[field]}"
    return Metric(name, "ms", formula, "lower", "request", quantile_rule(share), compute)


def _censored_quantile(field: str, share: float) -> Metric:
    def compute(run: RunTables) -> Figure:
        return tail(run.sorted_censored_ms(f"{field}_ms"), share)

    name = f"{field}_p{share * 100:.0f}_censored_ms"
    formula = (
        f"p{share * 100:.0f}, linear interpolation, over warm measured requests, unfinished ones infinitely late, "
        f"of: {LATENCIES[field]}"
    )
    return Metric(name, "ms", formula, "lower", "request", quantile_rule(share), compute)


def _latency_mean(field: str) -> Metric:
    def compute(run: RunTables) -> Figure:
        values = run.sorted_ms(f"{field}_ms")
        if not len(values):
            return absent("ms", Absence.NOT_APPLICABLE, "not defined (0 samples)", 0)
        return present(float(values.mean()), "ms", len(values))

    formula = f"mean over warm finished measured requests of: {LATENCIES[field]}"
    return Metric(f"{field}_mean_ms", "ms", formula, "lower", "request", "any", compute)


def _latency_max(field: str) -> Metric:
    def compute(run: RunTables) -> Figure:
        values = run.sorted_ms(f"{field}_ms")
        if not len(values):
            return absent("ms", Absence.NOT_APPLICABLE, "not defined (0 samples)", 0)
        return present(float(values[-1]), "ms", len(values))

    formula = f"largest over warm finished measured requests of: {LATENCIES[field]}"
    return Metric(f"{field}_max_ms", "ms", formula, "lower", "request", "any", compute)


def _gap_quantile(share: float) -> Metric:
    name = f"itl_p{share * 100:.0f}_ms"
    formula = f"p{share * 100:.0f} of the gaps between tokens, pooled over warm finished measured requests"
    return Metric(name, "ms", formula, "lower", "request", quantile_rule(share), lambda run: tail(run.gap_ms, share))


def latency_metrics() -> Iterable[Metric]:
    """Quantiles, means and maxima of the request fields, plain and censored, and of the pooled gaps."""
    for field in _WITH_QUANTILES:
        for share in _QUANTILES:
            yield _latency_quantile(field, share)
    for field in LATENCIES:
        yield _latency_mean(field)
    for field in CENSORED:
        for share in _QUANTILES:
            yield _censored_quantile(field, share)
    for field in ("send_delay", "queue_wait", "longest_gap", "unattributed"):
        yield _latency_max(field)
    for share in _QUANTILES:
        yield _gap_quantile(share)
