"""Requests taken from a trace: a range of its rows, at its speed or another, at its lengths or a share of them."""

from array import array
from collections.abc import Callable, Iterator
from fractions import Fraction

from scheduler_core.spec.workload import Trace, WorkloadSpec
from scheduler_core.types.errors import InputError, Problem
from scheduler_core.types.time import NS_PER_S
from scheduler_core.workload.distributions import exact
from scheduler_core.workload.prefixes import SharedPrefixes
from scheduler_core.workload.slots import MOST_TOKENS, Offered, Slot
from scheduler_core.workload.traces.data import TraceData


def offer(spec: WorkloadSpec, data: TraceData) -> Offered:
    """The rows of ``data`` that ``spec`` plays, stretched and scaled as it says; `InputError` names the field."""
    assert spec.trace is not None
    first, last = _range(spec, len(data))
    _check_people(spec, data)
    scale = exact(spec.trace.lengths_scale)
    longest = max(max(data.prompts[first:last]), max(data.outputs[first:last]))
    if _scaled(longest, scale) > MOST_TOKENS:
        message = f"makes {_scaled(longest, scale):,} tokens of {longest:,}; a request may have {MOST_TOKENS:,}"
        raise InputError([Problem("trace.lengths_scale", message)])
    outputs = array("q", (_scaled(output, scale) for output in data.outputs[first:last]))
    block_size = spec.block_size
    if data.blocks is not None:
        assert data.block_size is not None  # read together with the ids
        block_size = _scaled(data.block_size, scale)
    prefixes = SharedPrefixes(spec.prefix, block_size, spec.seed)
    slots = _slots(spec.trace, data, first, outputs, prefixes)
    notes = (*_notes(spec.trace, data, first, last), *prefixes.notes())
    return Offered(slots, outputs, block_size, notes, data.observed_hit_share(first, last))


def _range(spec: WorkloadSpec, usable: int) -> tuple[int, int]:
    """Rows ``[first, last)`` to play, from the usable ones in time order."""
    assert spec.trace is not None
    first, last = 0, usable
    if spec.trace.rows is not None:
        start, end = (int(part) for part in spec.trace.rows.split("-"))
        if end > usable:
            message = f"{spec.trace.rows} reaches past the end: the trace has {usable} usable rows"
            raise InputError([Problem("trace.rows", message)])
        first, last = start - 1, end
    if spec.requests is not None:
        if spec.requests > last - first:
            message = f"{spec.requests} are asked for, but the trace has {last - first} usable rows to play"
            raise InputError([Problem("requests", message)])
        last = first + spec.requests
    return first, last


def _check_people(spec: WorkloadSpec, data: TraceData) -> None:
    problems = []
    if data.tiers is not None:
        unknown = sorted(set(data.tiers.names) - set(spec.tiers))
        if unknown:
            message = f"the trace has rows of {', '.join(map(repr, unknown))}; declare them here with their objectives"
            problems.append(Problem("tiers", message))
    if data.tenants is not None and set(spec.tenants) != {"default"}:
        unknown = sorted(set(data.tenants.names) - set(spec.tenants))
        if unknown:
            message = f"the trace has rows of {', '.join(map(repr, unknown))}; declare them too, or leave tenants out"
            problems.append(Problem("tenants", message))
    if data.blocks is not None and spec.prefix is not None:
        problems.append(Problem("prefix", "the trace brings its own prefix blocks; leave this out"))
    if problems:
        raise InputError(problems)


def _slots(
    trace: Trace, data: TraceData, first: int, outputs: "array[int]", prefixes: SharedPrefixes
) -> Iterator[Slot]:
    scale = exact(trace.lengths_scale)
    time_of = _clock(trace, data, first, len(outputs))
    for index, output in enumerate(outputs):
        row = first + index
        prompt = _scaled(data.prompts[row], scale)
        session = data.sessions[row] if data.sessions is not None else -1
        blocks = -(-prompt // prefixes.block_size)
        ids = prefixes.ids(index, prompt) if data.blocks is None else data.blocks.of(row)[:blocks]
        after = _parents(data, row, range(first, first + len(outputs)))
        yield Slot(
            arrival_ns=time_of(index) if data.parents is None or not after else data.parents.think_ns[row],
            after=after,
            prompt_tokens=prompt,
            output_tokens=output,
            who=index if session < 0 else len(data) + session,
            session=None if session < 0 else session,
            turn=data.turns[row] if data.turns is not None else 0,
            prefix_blocks=ids,
            tenant=data.tenants.of(row) if data.tenants is not None else None,
            tier=data.tiers.of(row) if data.tiers is not None else None,
        )


def _parents(data: TraceData, row: int, played: range) -> tuple[int, ...]:
    """The played rows that a row waits for; those that lie elsewhere are taken to have ended."""
    if data.parents is None:
        return ()
    return tuple(parent - played.start for parent in data.parents.of(row) if parent in played)


def _clock(trace: Trace, data: TraceData, first: int, count: int) -> Callable[[int], int]:
    """Arrival of the ``index``-th played row; the first is at 0."""
    rate = None if trace.rate_rps is None else exact(trace.rate_rps)
    if not data.timed:
        if rate is None:
            message = "is missing: the file has lengths but no arrival times, so say at which rate its rows are sent"
            raise InputError([Problem("trace.rate_rps", message)])
        return lambda index: index * NS_PER_S * rate.denominator // rate.numerator
    start = data.arrivals_ns[first]
    span = data.arrivals_ns[first + count - 1] - start
    if rate is None or count == 1:
        return lambda index: data.arrivals_ns[first + index] - start
    if span == 0:
        message = f"all {count} rows have one time, so there is nothing to stretch; leave it out or play more rows"
        raise InputError([Problem("trace.rate_rps", message)])
    stretch = Fraction((count - 1) * NS_PER_S, span) / rate
    return lambda index: (data.arrivals_ns[first + index] - start) * stretch.numerator // stretch.denominator


def _scaled(tokens: int, scale: Fraction) -> int:
    """``tokens * scale``, rounded half up, at least 1."""
    return max(1, (2 * tokens * scale.numerator + scale.denominator) // (2 * scale.denominator))


def _notes(trace: Trace, data: TraceData, first: int, last: int) -> Iterator[str]:
    """Where the requests come from and what was done to them."""
    if data.attribution:
        yield f"from a trace: {data.attribution}"
    yield f"rows {first + 1}-{last} of {len(data)} usable rows ({data.format}, SHA-256 {data.sha256[:16]})"
    yield from data.rules
    if trace.rate_rps is not None:
        reuse = "; the time between two uses of a prefix block with it" if data.blocks is not None else ""
        yield f"time is stretched so that the mean rate is {trace.rate_rps:g} requests/s{reuse}"
    if trace.lengths_scale != 1.0:
        blocks = " and prefix blocks" if data.blocks is not None else ""
        yield f"lengths{blocks} are multiplied by {trace.lengths_scale:g}"
