"""What a person should see of a trace before using it."""

from collections import Counter
from typing import Any

from pydantic import BaseModel

from scheduler_core.spec.parse import parse
from scheduler_core.spec.workload import Trace
from scheduler_core.types.errors import InputError
from scheduler_core.types.time import s_from_ns
from scheduler_core.workload.traces.data import Labels, TraceData
from scheduler_core.workload.traces.reader import Source, read_trace

MOST_LISTED = 1000
"""Rejected rows listed one by one; `Inspection.rejected_rows` counts all."""


class RejectedRow(BaseModel, frozen=True, extra="forbid"):
    """A row that is not played, and why."""

    line: int
    reason: str


class Inspection(BaseModel, frozen=True, extra="forbid"):
    """Findings of a trace's reader. Token counts, times and groups are those of the usable rows.

    ``rows`` are all data rows of the file, ``usable_rows`` those that a replay plays. ``rate_rps`` is
    ``(usable_rows - 1) / span_s``, None when all rows have one time or none has any; ``replay_s`` is how long the
    arrivals take at the speed asked for. ``prefix_hit_blocks`` are the leading block ids that earlier rows had too:
    what a cache without bounds could save; ``observed_hit_share`` is the share of the prompt tokens that the logged
    server found in its cache, where the file says. ``digest`` is that of the usable rows as integers, ``sha256`` that
    of the file.
    """

    format: str
    rows: int
    usable_rows: int
    rejected: list[RejectedRow]
    rejected_rows: int
    span_s: float | None
    rate_rps: float | None
    replay_s: float | None
    prompt_tokens: int
    output_tokens: int
    prompt_tokens_max: int
    output_tokens_max: int
    output_tokens_min: int
    one_token_outputs: int
    zero_output_rows: int
    out_of_order_rows: int
    same_instant_groups: int
    same_instant_rows: int
    same_instant: str
    time_unit: str
    block_size: int | None
    blocks: int | None
    prefix_hit_blocks: int | None
    prefix_hit_share: float | None
    observed_hit_share: float | None
    sessions: int | None
    tenants: dict[str, int] | None
    tiers: dict[str, int] | None
    rules: list[str]
    warnings: list[str]
    attribution: str
    bytes: int
    sha256: str
    digest: str

    def canonical(self) -> dict[str, Any]:
        """Plain JSON data."""
        return self.model_dump(mode="json")


def inspect(source: Source, **options: object) -> Inspection:
    """Read ``source`` whole and say what is in it; nothing is kept.

    ``options`` are fields of `scheduler_core.spec.workload.Trace`: ``format``, ``columns``, ``time_unit``,
    ``block_size``, ``same_instant``, ``zero_output``, ``rate_rps`` (for ``replay_s``). `InputError` refuses the file
    or an option, each problem with its line or field; `refusal_report` turns it into plain data.
    """
    given = {name: value for name, value in options.items() if value is not None}
    trace = parse(Trace, {"file": "-", **given})
    return describe(read_trace(source, trace), trace)


def refusal_report(error: InputError) -> dict[str, object]:
    """A refused file as plain data: the whole text as ``error``, and its lines as ``rejected``."""
    lines = [
        {"line": int(problem.where.removeprefix("line ")), "reason": problem.message}
        for problem in error.problems
        if problem.where.startswith("line ")
    ]
    return {"error": str(error), "rejected": lines}


def describe(data: TraceData, trace: Trace) -> Inspection:
    """The findings on rows that were read by the rules of ``trace``."""
    span_s = s_from_ns(data.span_ns) if data.timed else None
    rate = (len(data) - 1) / span_s if span_s else None
    speed = trace.rate_rps or rate
    blocks, hits = _prefix_hits(data)
    return Inspection(
        format=data.format,
        rows=data.rows,
        usable_rows=len(data),
        rejected=[RejectedRow(line=row.line, reason=row.reason) for row in data.rejected[:MOST_LISTED]],
        rejected_rows=len(data.rejected),
        span_s=span_s,
        rate_rps=rate,
        replay_s=(len(data) - 1) / speed if speed else span_s,
        prompt_tokens=sum(data.prompts),
        output_tokens=sum(data.outputs),
        prompt_tokens_max=max(data.prompts),
        output_tokens_max=max(data.outputs),
        output_tokens_min=min(data.outputs),
        one_token_outputs=data.outputs.count(1),
        zero_output_rows=data.zero_output_rows,
        out_of_order_rows=data.out_of_order_rows,
        same_instant_groups=data.same_instant_groups,
        same_instant_rows=data.same_instant_rows,
        same_instant=trace.same_instant,
        time_unit=data.rules[0],
        block_size=data.block_size,
        blocks=blocks,
        prefix_hit_blocks=hits,
        prefix_hit_share=hits / blocks if blocks and hits is not None else None,
        observed_hit_share=data.observed_hit_share(),
        sessions=len(set(data.sessions) - {-1}) if data.sessions is not None else None,
        tenants=_counts(data.tenants),
        tiers=_counts(data.tiers),
        rules=list(data.rules),
        warnings=_warnings(data),
        attribution=data.attribution,
        bytes=data.bytes,
        sha256=data.sha256,
        digest=data.digest,
    )


def _counts(labels: Labels | None) -> dict[str, int] | None:
    if labels is None:
        return None
    counts = Counter(labels.codes)
    return {name: counts[code] for code, name in enumerate(labels.names)}


def _prefix_hits(data: TraceData) -> tuple[int | None, int | None]:
    """Blocks in all, and those at the start of a prompt that some earlier row had too."""
    if data.blocks is None:
        return None, None
    seen: set[int] = set()
    hits = 0
    for row in range(len(data)):
        ids = data.blocks.of(row)
        hits += next((place for place, item in enumerate(ids) if item not in seen), len(ids))
        seen.update(ids)
    return len(data.blocks.ids), hits


def _warnings(data: TraceData) -> list[str]:
    """What reads well and may still be wrong."""
    warnings = []
    if data.timed and len(data) > 1 and data.span_ns == 0:
        warnings.append("all rows have one time: the replay is a single burst")
    if data.format == "burstgpt" and len(data) > 2 and _counts_up(data):
        warnings.append("times are 0, 1, 2, ...: a made-up copy of BurstGPT is known to look so; the real one does not")
    if data.blocks is not None and data.block_size is not None:
        covered = len(data.blocks.ids) * data.block_size / sum(data.prompts)
        if covered < 0.5:
            warnings.append(f"prefix block ids cover {covered:.1%} of the prompt tokens: is the block size right?")
    return warnings


def _counts_up(data: TraceData) -> bool:
    second = data.arrivals_ns[1]
    return second > 0 and all(at == row * second for row, at in enumerate(data.arrivals_ns))
