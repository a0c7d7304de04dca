"""The live charts, declared once: keys of a sample, words and units. Scripts and the page read this."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Line:
    """One series: key of the sample, label, colour 1 to 6, and a factor from the sample's unit to the chart's."""

    key: str
    label: str
    colour: int
    factor: float = 1.0
    dashed: bool = False


@dataclass(frozen=True)
class ChartSpec:
    """One chart. ``stacked`` fills its series on top of each other; ``top`` fixes the upper end of the axis."""

    id: str
    title: str
    unit: str
    lines: tuple[Line, ...]
    stacked: bool = False
    top: float | None = None
    note: str = field(default="", compare=False)


CHARTS = (
    ChartSpec(
        "queue",
        "Requests in the system",
        "requests",
        (Line("waiting", "waiting", 2), Line("running", "running", 1), Line("paused", "paused", 4)),
    ),
    ChartSpec(
        "kv",
        "KV blocks",
        "blocks",
        (Line("kv_used", "used", 1), Line("kv_cached", "cached", 3), Line("kv_free", "free", 6)),
        stacked=True,
    ),
    ChartSpec(
        "tokens",
        "Tokens per second by phase",
        "tokens/s",
        (Line("prefill_tokens_per_s", "prefill", 2), Line("decode_tokens_per_s", "decode", 1)),
    ),
    ChartSpec(
        "batch",
        "Tokens in the newest step",
        "tokens",
        (
            Line("step_prefill_tokens", "prefill", 2),
            Line("step_decode_tokens", "decode", 1),
            Line("step_budget", "budget", 6, dashed=True),
        ),
    ),
    ChartSpec("ttft", "Time to first token", "ms", (Line("ttft_p50_ms", "p50", 3), Line("ttft_p95_ms", "p95", 5))),
    ChartSpec(
        "gap",
        "Gap between tokens",
        "ms",
        (Line("gap_p50_ms", "p50", 3), Line("gap_p95_ms", "p95", 2), Line("gap_p99_ms", "p99", 5)),
    ),
    ChartSpec(
        "use",
        "Pool utilisation and prefix hits",
        "%",
        (Line("busy_share", "pool busy", 1, 100.0), Line("hit_rate", "prefix hit rate", 3, 100.0)),
        top=100.0,
    ),
    ChartSpec(
        "done",
        "Finished requests and preemptions",
        "count",
        (Line("done", "finished", 1), Line("preemptions", "preemptions", 5)),
    ),
)


def chart_data() -> list[dict[str, Any]]:
    """The charts as plain data."""
    return [asdict(chart) for chart in CHARTS]
