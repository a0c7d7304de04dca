"""Figures that only a load client has: how it streamed, how evenly it sent, what it cost."""

from collections.abc import Iterable

from scheduler_core.evidence.metric import Better, Metric, SampleRule, absent
from scheduler_core.evidence.run_tables import RunTables
from scheduler_core.evidence.schema import Absence, Figure

_GAP = "wait between two stream chunks of a request, whatever tokens the second one carried, pooled over warm finished "
_GAP += "measured requests"


def _client(name: str, unit: str, formula: str, better: Better, rule: SampleRule = "one per run") -> Metric:
    """A metric that a run against a server fills in from its client's records; elsewhere there is no client."""

    def compute(_run: RunTables) -> Figure:
        return absent(unit, Absence.NOT_APPLICABLE, "this target has no load client")

    return Metric(name, unit, formula, better, "run", rule, compute)


def client_metrics() -> Iterable[Metric]:
    """All of them."""
    for share in (50, 95, 99):
        rule: SampleRule = "p99: withheld below 100, marked below 300" if share == 99 else "any"
        yield _client(f"chunk_gap_p{share}_ms", "ms", f"p{share} of the {_GAP}", "lower", rule)
    yield _client(
        "chunk_tokens_mean", "tokens", "output tokens / stream chunks of warm finished measured requests", "none"
    )
    yield _client("offered_rps", "requests/s", "(measured requests - 1) / first to last intended send time", "none")
    yield _client("sent_rps", "requests/s", "(measured requests - 1) / first to last real send time", "none")
    yield _client("client_retries", "count", "tries beyond the first of all requests", "none")
    yield _client("client_cpu_s", "s", "CPU time of the load client", "none")
    yield _client("client_busiest_share", "share", "most of a core that one of its processes used in a second", "none")
    yield _client("client_lag_p99_ms", "ms", "p99 of how late its event loop ran, worst process", "none")
