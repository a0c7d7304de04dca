"""The live charts, declared once: keys of a sample, words and units. Scripts and the page read this."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from controlplane.live.series import pool_key


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


MOST_GROUPS = 6
POOL_CHARTS = (
    ("pool-busy", "Busy, by pool", "%", "busy_share", 100.0),
    ("pool-kv", "KV used, by pool", "%", "kv_used_share", 100.0),
    ("pool-running", "Running requests, by pool", "requests", "running", 1.0),
    ("pool-waiting", "Waiting requests, by pool", "requests", "waiting", 1.0),
    ("pool-on", "Instances that are on, by pool", "instances", "on", 1.0),
)
MOVE_CHARTS = (
    ChartSpec(
        "moves",
        "Requests between instances, and handoffs that fell back",
        "count",
        (Line("on_the_way", "on the way", 1), Line("fallbacks", "fallbacks so far", 5)),
    ),
    ChartSpec("links", "KV moved over links", "MB/s", (Line("moved_bytes_per_s", "moved", 3, 1e-6),)),
    ChartSpec(
        "changes",
        "Instances started, drained, lent or moved so far",
        "count",
        (Line("instance_changes", "changes", 2),),
    ),
)


def chart_data(groups: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The charts as plain data; with ``groups`` of a cluster's instances also those by pool, for the first six, and
    what moves between them."""
    moves = MOVE_CHARTS if groups else ()
    return [asdict(chart) for chart in (*CHARTS, *_pool_charts(groups[:MOST_GROUPS]), *moves)]


def _pool_charts(groups: Sequence[str]) -> Iterator[ChartSpec]:
    for id_, title, unit, name, factor in POOL_CHARTS if groups else ():
        lines = tuple(
            Line(pool_key(group, name), group, colour, factor) for colour, group in enumerate(groups, start=1)
        )
        yield ChartSpec(id_, title, unit, lines, top=100.0 if unit == "%" else None)


def groups_of(target: Mapping[str, Any]) -> list[str]:
    """Names of the groups of a target spec's cluster; empty for one instance."""
    topology = (target.get("modelled") or {}).get("topology") or {}
    return list(topology.get("groups") or {})
