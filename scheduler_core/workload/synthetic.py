"""Requests drawn from distributions: open loop, closed loop, and sessions in either."""

from array import array
from collections.abc import Iterable, Iterator
from fractions import Fraction

from scheduler_core.spec.workload import Arrivals, Length, Lengths, WorkloadSpec
from scheduler_core.types.errors import InputError, Problem
from scheduler_core.types.time import ns_from_s
from scheduler_core.workload.arrivals import arrival_times
from scheduler_core.workload.conversations import Conversations
from scheduler_core.workload.distributions import exact, length_draw, scaled
from scheduler_core.workload.prefixes import SharedPrefixes
from scheduler_core.workload.slots import MOST_TOKENS, Offered, Slot
from scheduler_core.workload.uniform import Stream


def offer(spec: WorkloadSpec, arrivals: Arrivals, lengths: Lengths) -> Offered:
    """The requests of ``spec`` with these arrivals and lengths (its own, or those of its profile)."""
    count = spec.requests
    assert count is not None  # required beside arrivals and profile, validated by the spec
    scale = exact(lengths.scale)
    prompts = _draws("prompt", lengths.prompt, scale, spec)
    outputs = _draws("output", lengths.output, scale, spec)
    prefixes = SharedPrefixes(spec.prefix, spec.block_size, spec.seed)
    slots: Iterable[Slot]
    if spec.sessions is not None:
        plan = Conversations(spec.sessions, arrivals, count, spec.seed)
        slots = plan.slots(prompts, outputs, prefixes)
    elif arrivals.closed is not None:
        slots = _closed(arrivals, prompts, outputs, prefixes)
    else:
        slots = _open(arrival_times(arrivals, count, seed=spec.seed), prompts, outputs, prefixes)
    return Offered(slots, outputs, spec.block_size, tuple(prefixes.notes()))


def _draws(name: str, length: Length, scale: Fraction, spec: WorkloadSpec) -> "array[int]":
    """Token counts of all requests; `InputError` names the field when one is beyond any model."""
    assert spec.requests is not None
    draw, stream = length_draw(length), Stream(spec.seed, name)
    drawn = array("q")
    for index in range(spec.requests):
        count = scaled(draw(stream.at(index)), scale)
        if count > MOST_TOKENS:
            where = f"lengths.{name}" if spec.profile is None else "lengths_scale"
            message = f"gives request {index} {count:,} tokens; a request may have {MOST_TOKENS:,}"
            raise InputError([Problem(where, message)])
        drawn.append(count)
    return drawn


def _open(
    times: Iterable[int], prompts: "array[int]", outputs: "array[int]", prefixes: SharedPrefixes
) -> Iterator[Slot]:
    for index, (at, prompt, output) in enumerate(zip(times, prompts, outputs, strict=True)):
        yield Slot(at, prompt, output, index, prefix_blocks=prefixes.ids(index, prompt))


def _closed(
    arrivals: Arrivals, prompts: "array[int]", outputs: "array[int]", prefixes: SharedPrefixes
) -> Iterator[Slot]:
    """All users start at 0; request ``i`` waits for the answer to ``i - concurrency``, that user's last one."""
    assert arrivals.closed is not None
    users, think = arrivals.closed.concurrency, ns_from_s(arrivals.closed.think_s)
    for index, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        after = (index - users,) if index >= users else ()
        at = think if after else 0
        yield Slot(at, prompt, output, index, after=after, prefix_blocks=prefixes.ids(index, prompt))
