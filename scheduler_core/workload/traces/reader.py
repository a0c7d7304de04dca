"""Reading a whole trace file, or refusing it."""

from array import array
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from scheduler_core.spec.workload import Trace
from scheduler_core.workload.traces.collect import Collector, LabelColumn
from scheduler_core.workload.traces.data import Blocks, Labels, TraceData, same_instants, spread
from scheduler_core.workload.traces.layouts import Layout, choose
from scheduler_core.workload.traces.lines import Lines, opened
from scheduler_core.workload.traces.records import Records
from scheduler_core.workload.traces.values import show

Source = str | Path | BinaryIO
"""A path, or a binary file object (read from its start when it can seek)."""


def read_trace(source: Source, trace: Trace) -> TraceData:
    """All usable rows of ``source``, read by the rules of ``trace`` (format, columns, unit, block size, same instant).

    Which rows are played, how fast and how long they are is not applied here: that is `freeze`'s part. `InputError`
    refuses the file as a whole, with line numbers.
    """
    with opened(source) as stream:
        lines = Lines(stream)
        records = Records(lines)
        layout = choose(records.container, records.columns, records.sample("TIMESTAMP"), trace)
        rows = Collector(layout, trace.zero_output)
        for line, values in records:
            rows.add(line, values)
        rows.check()
    unread = [name for name in records.columns if name not in layout.required()]
    return _assemble(rows, layout, trace, lines, unread)


def _assemble(rows: Collector, layout: Layout, trace: Trace, lines: Lines, unread: list[str]) -> TraceData:
    order, late = _time_order(rows.arrivals)
    arrivals = _taken(rows.arrivals, order)
    first = arrivals[0]
    arrivals = array("q", (at - first for at in arrivals))
    groups, grouped = same_instants(arrivals) if layout.timed else (0, 0)
    if trace.same_instant == "spread" and layout.timed:
        arrivals = spread(arrivals)
    sessions = _taken(rows.sessions, order) if layout.has_sessions else None
    return TraceData(
        format=layout.name,
        arrivals_ns=arrivals,
        prompts=_taken(rows.prompts, order),
        outputs=_taken(rows.outputs, order),
        rows=rows.rows,
        sha256=lines.sha256,
        bytes=lines.bytes,
        timed=layout.timed,
        block_size=layout.block_size,
        blocks=_blocks(rows, order) if layout.columns.prefix_blocks else None,
        cached=_taken(rows.cached, order) if layout.columns.cached_tokens else None,
        parents=None if rows.parents is None else rows.parents.resolved(order),
        tenants=_labels(rows.tenants, order) if layout.columns.tenant else None,
        tiers=_labels(rows.tiers, order) if layout.columns.tier else None,
        sessions=sessions,
        turns=_turns(rows, layout, order),
        rejected=tuple(rows.rejected),
        zero_output_rows=rows.zero_output_rows,
        out_of_order_rows=late,
        same_instant_groups=groups,
        same_instant_rows=grouped,
        rules=tuple(_rules(rows, layout, trace, late=late, unread=unread)),
        attribution=layout.attribution,
    )


def _time_order(arrivals: "array[int]") -> tuple[list[int] | None, int]:
    """Row numbers in time order (None when they are) and how many rows come before the row above them in time."""
    late = sum(at < before for before, at in pairwise(arrivals))
    return (sorted(range(len(arrivals)), key=arrivals.__getitem__) if late else None), late


def _taken(column: "array[int]", order: list[int] | None) -> "array[int]":
    return column if order is None else array(column.typecode, (column[row] for row in order))


def _turns(rows: Collector, layout: Layout, order: list[int] | None) -> "array[int] | None":
    """Turns as the file numbers them, or counted from 0 in time order where it only names sessions."""
    if not layout.has_sessions or layout.chat is not None:
        return _taken(rows.turns, order) if layout.has_sessions else None
    counts: Counter[int] = Counter()
    turns = array("q")
    for session in _taken(rows.sessions, order):
        turns.append(counts[session] if session >= 0 else 0)
        counts[session] += 1
    return turns


def _labels(column: LabelColumn, order: list[int] | None) -> Labels:
    return Labels(tuple(column.numbers), _taken(column.codes, order))


def _blocks(rows: Collector, order: list[int] | None) -> Blocks:
    blocks = Blocks(rows.block_ids, rows.block_starts)
    if order is None:
        return blocks
    ids, starts = array("q"), array("q", [0])
    for row in order:
        ids.extend(blocks.of(row))
        starts.append(len(ids))
    return Blocks(ids, starts)


def _rules(rows: Collector, layout: Layout, trace: Trace, *, late: int, unread: list[str]) -> list[str]:
    """What was applied in reading, in words."""
    rules = [layout.unit_words]
    if not layout.timed:
        rules = ["the file has lengths but no arrival times: rows are spaced evenly at trace.rate_rps, in file order"]
    if layout.columns.prefix_blocks:
        rules.append(f"one prefix block id stands for {layout.block_size} tokens")
    if layout.timed:
        kept = "rows with one time are kept together"
        rules.append(kept if trace.same_instant == "keep" else "rows with one time are spread evenly to the next time")
    if rows.zero_output_rows:
        done = "left out" if trace.zero_output == "drop" else "given one output token, unless the prompt is empty too"
        rules.append(f"{rows.zero_output_rows} rows without output tokens (failed calls) are {done}")
    if late:
        rules.append(f"{late} rows were earlier than the row above them: all rows are sorted by time")
    if layout.columns.parents is not None:
        rules.append("rows with parents are sent when the last of them has ended, after their think time")
    if layout.chat is not None:
        rules.append("turns of a conversation are replayed at their recorded times")
    if unread:
        more = f" and {len(unread) - 12} more" if len(unread) > 12 else ""
        rules.append(f"columns not read: {', '.join(map(show, unread[:12]))}{more}")
    return rules
