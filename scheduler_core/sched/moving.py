"""A request on its way between two instances: parked with its blocks where it leaves, lodged where it arrives.

Blocks of a parked request wait for an external event (a transfer that ends, a destination with room), so it is in no
queue and takes no slot. A lodged one waits for a slot like anybody else, but its KV is there already::

    source        RUNNING -> PARKED ---------------------> gone (departed), or QUEUED again (it stays)
    destination              PARKED (reserved) -> QUEUED (lodged) -> RUNNING
"""

from typing import NamedTuple

from scheduler_core.kv.prefix import TieredHits
from scheduler_core.request.lifecycle import Event, State
from scheduler_core.request.live import APART, LiveRequest
from scheduler_core.request.spec import RequestSpec
from scheduler_core.sched.memory import blocks_for
from scheduler_core.sched.policy import PolicySet
from scheduler_core.sched.state import InstanceState
from scheduler_core.types.cluster_records import Revoked
from scheduler_core.types.errors import CallerError
from scheduler_core.types.time import Ns


class Leaving(NamedTuple):
    """A request as it is taken over: ``known`` tokens, of which ``computed`` have KV, under a new ``epoch``."""

    spec: RequestSpec
    known: int
    computed: int
    epoch: int


class Reserved(NamedTuple):
    """Room for a request that will be delivered; the KV of its first ``hit_tokens`` is there already."""

    request: int
    epoch: int
    hit_tokens: int


def hold(state: InstanceState, request: LiveRequest) -> None:
    """Take a waiting request out of the queue; it has no blocks and waits for something outside."""
    state.waiting.remove(request)
    request.apply(Event.PARK)
    state.parked[request.id] = request


def release(state: InstanceState, policy: PolicySet, request: LiveRequest) -> None:
    """A request that was held waits in the policy's order again."""
    request.apply(Event.LODGE)
    del state.parked[request.id]
    state.waiting.push(request, policy.order.key(request))


def park(state: InstanceState, request: LiveRequest) -> None:
    """Take a running request out of the steps; it keeps its blocks, and gives up what it was promised beyond them.

    Raises:
        CallerError: it does not run, or a step of it is in flight.
    """
    if request.confirmed != request.granted:
        raise CallerError(f"request {request.id} has a step in flight")
    request.apply(Event.PARK)
    state.leave_running(request)
    state.memory.pledged -= request.pledge
    request.pledge = 0
    state.parked[request.id] = request


def reserve(state: InstanceState, request: LiveRequest, tokens: int, *, spoken_for: int) -> bool:
    """Lease the blocks for ``tokens`` positions that will be delivered; false (and nothing changed) without room.

    ``spoken_for`` free blocks are not to be touched.

    Beginnings that are cached here are adopted, and need not be sent: `LiveRequest.hit_tokens`.
    """
    memory = state.memory
    hits = memory.match(request)
    if isinstance(hits, TieredHits):
        hits = list(hits)  # what lies in the host comes over the link like all the rest
    need = max(0, blocks_for(tokens, memory.block_size) - len(hits))
    if need > memory.free - memory.idle(hits) - memory.pledged - spoken_for:
        return False
    request.apply(Event.PARK)
    if hits:
        memory.adopt(request, hits)
    memory.grow(request, need)
    state.requests[request.id] = state.parked[request.id] = request
    return True


def extend(state: InstanceState, request: LiveRequest, tokens: int) -> bool:
    """Lease more blocks for a reserved request, for ``tokens`` positions in all; false without room."""
    memory = state.memory
    need = blocks_for(tokens, memory.block_size) - request.blocks
    if need > memory.free - memory.pledged:
        return False
    memory.grow(request, max(0, need))
    return True


def lodge(state: InstanceState, policy: PolicySet, request: LiveRequest, tokens: int) -> None:
    """The KV of the first ``tokens`` positions is there: the request waits for a slot in the policy's order."""
    request.apply(Event.LODGE)
    del state.parked[request.id]
    request.deliver(tokens)
    request.answers = True
    request.decodes_from = min(request.decodes_from, request.granted)
    state.memory.publish(request, tokens)
    state.lodged[request.id] = request
    state.waiting.push(request, policy.order.key(request))


def keep(state: InstanceState, request: LiveRequest, tokens: int) -> None:
    """The KV of the first ``tokens`` positions of a reserved request is there, for others to find: it is cached."""
    state.memory.publish(request, tokens)
    depart(state, request)


def cached(state: InstanceState, spec: RequestSpec, model_length: int) -> int:
    """Tokens of the beginning of ``spec`` that the device has cached."""
    hits = state.memory.match(LiveRequest(spec, seq=0, model_length=model_length))
    return len(list(hits)) * state.memory.block_size


def depart(state: InstanceState, request: LiveRequest) -> None:
    """Forget a parked request whose KV is elsewhere, or not needed any more; what was published stays cached."""
    request.apply(Event.DEPART)
    del state.parked[request.id]
    del state.requests[request.id]
    state.released.append(request.id)
    state.memory.release(request, fence=state.fence())


def revoke_lodged(state: InstanceState, *, but: LiveRequest | None, now_ns: Ns) -> bool:
    """Take the blocks of the youngest lodged request except ``but``, which then waits like any preempted one.

    Without this, requests that all hold blocks and all need one more would wait for each other for ever.
    """
    victim = next((request for request in reversed(state.lodged.values()) if request is not but), None)
    if victim is None:
        return False
    del state.lodged[victim.id]
    lost = victim.restart(None)
    victim.lost_until = max(victim.lost_until, lost)
    victim.preemptions += 1
    held = state.memory.release(victim)
    state.records.append(Revoked(now_ns, victim.id, held, lost))
    return True


def check_places(state: InstanceState) -> str | None:
    """What is wrong with who is parked and lodged, or None."""
    for request in state.parked.values():
        if request.state is not State.PARKED or request.joined != APART:
            return f"parked request {request.id} is {request.state.name}"
    for request in state.lodged.values():
        # One more than its tokens take, or those of drafts, where it ran before.
        if request.state is not State.QUEUED or request.blocks < blocks_for(request.granted, state.memory.block_size):
            return f"lodged request {request.id} is {request.state.name} with {request.blocks} blocks"
    return None
