"""Requests that have to stop: back to the queue without blocks, or standing by with what they have.

A *stopped* request cannot run, and has its KV: a paused one keeps blocks on the device, a swapped one has host blocks.
By default stopped requests go on before anybody new comes in, in order of their admission, so they always do: when
nothing runs, the first of them finds the whole pool but for what paused ones hold, and those are revoked, youngest
first. Where a policy queues them by their key instead, the head finds the whole pool but for what those behind it hold,
and these give it up (`scheduler_core.sched.swapping`).
"""

from typing import NamedTuple

from scheduler_core.request.lifecycle import Event, State
from scheduler_core.request.live import LiveRequest
from scheduler_core.sched.decisions import Deferral, Place, Remedy
from scheduler_core.sched.memory import blocks_for
from scheduler_core.sched.policy import PolicySet
from scheduler_core.sched.state import InstanceState
from scheduler_core.types.plan import Grant
from scheduler_core.types.reasons import Preempt
from scheduler_core.types.records import Paused, Preempted, Resumed, Swapped
from scheduler_core.types.time import Ns

KEEP, SWAP = "keep", "swap"
HOST, DEVICE = "host", "device"


class Stop(NamedTuple):
    """Why a request is stopped, when, and its ``revoked`` grant of the step being planned."""

    reason: Preempt
    now_ns: Ns
    revoked: Grant | None = None


def stop(state: InstanceState, policy: PolicySet, victim: LiveRequest, why: Stop) -> None:
    """Take the blocks of a request that is paused, or has just left the running order, as the policy chooses."""
    remedy = shortage = None
    computed = victim.granted if why.revoked is None else why.revoked.start
    state.memory.retract(victim, computed)
    if policy.preemption is not None and computed:
        remedy = policy.preemption.weigh(computed, victim.blocks)
        if remedy.swap:
            shortage = _swap_out(state, policy, victim, why, remedy)
            if shortage is None:
                return
    requeue(state, policy, victim, why, remedy=remedy, shortage=shortage)


def requeue(
    state: InstanceState,
    policy: PolicySet,
    victim: LiveRequest,
    why: Stop,
    *,
    remedy: Remedy | None = None,
    shortage: Deferral | None = None,
) -> None:
    """Take the blocks of a request that holds its place no more and put it back into the queue (V-16).

    Steps execute in launch order, so its blocks may be written by a later step even while one of its own is still in
    flight; they need no fence. ``remedy`` is what was weighed, ``shortage`` why it was not swapped all the same.
    """
    victim.apply(Event.PREEMPT)
    state.stopped.pop(victim.id, None)
    state.released.append(victim.id)
    epoch, saved = victim.epoch, victim.saved
    lost = max(victim.restart(why.revoked), saved)
    victim.lost_until = max(victim.lost_until, lost)
    victim.preemptions += 1
    held = state.memory.release(victim)
    if victim.host_table:
        state.memory.forget_swapped(victim)
    if victim not in state.waiting:  # one that was stopped before keeps its place
        _wait(state, policy, victim)
    if state.keeps_records:
        need, have = (None, None) if shortage is None else (shortage.need, shortage.have)
        copy_ns, recompute_ns = (None, None) if remedy is None else remedy[1:]
        at = (why.now_ns, victim.id, epoch, why.reason.value, held, lost, state.next_step)
        state.records.append(Preempted(*at, copy_ns, recompute_ns, need, have))


def set_aside(state: InstanceState, policy: PolicySet, victim: LiveRequest, why: Stop) -> None:
    """A request that has just left the running order gave up its slot alone: its blocks stay until they are needed."""
    if why.revoked is not None:
        victim.take_back(why.revoked)
        fresh = len(why.revoked.new_blocks)
    else:  # one of a group got its block without a grant of its own; none drafts in a group
        alone = policy.limits.draft_tokens > 0
        fresh = 0 if alone else victim.blocks - blocks_for(victim.granted, state.memory.block_size)
    state.memory.retract(victim, victim.granted)
    state.memory.trim(victim, fresh)
    victim.apply(Event.PAUSE)
    _stand_by(state, policy, victim)
    if state.keeps_records:
        at = (why.now_ns, victim.id, victim.epoch, KEEP, why.reason.value, victim.blocks, victim.granted)
        state.records.append(Paused(*at, state.next_step))


def pause(state: InstanceState, request: LiveRequest, why: Stop, short: tuple[int, int]) -> None:
    """A running request waits with its blocks for ``short``: the blocks it needs, and those there are."""
    state.leave_running(request)
    request.apply(Event.PAUSE)
    state.stopped[request.id] = request
    if state.keeps_records:
        at = (why.now_ns, request.id, request.epoch, KEEP, why.reason.value, request.blocks, request.granted)
        state.records.append(Paused(*at, state.next_step, *short))


def youngest_paused(state: InstanceState) -> LiveRequest | None:
    """Who has to give up the blocks that paused requests keep, when nothing moves otherwise."""
    paused = [request for request in state.stopped.values() if request.state is State.PAUSED]
    return max(paused, key=lambda request: request.run_seq, default=None)


def fetch(state: InstanceState, request: LiveRequest, now_ns: Ns) -> None:
    """Copy the KV of a swapped request back before it runs; there must be room."""
    request.apply(Event.FETCH)
    state.memory.swap_in(request)
    if state.keeps_records:
        at = (now_ns, request.id, request.epoch, DEVICE, request.blocks, request.granted, state.next_step)
        state.records.append(Swapped(*at))


def take_back(state: InstanceState, request: LiveRequest, now_ns: Ns) -> None:
    """A stopped request runs again, behind those that run; a swapped one gets blocks for what it had computed."""
    del state.stopped[request.id]
    if state.queues_stopped:
        state.waiting.remove(request)
    how = KEEP
    if request.state is State.SWAPPED:
        how = SWAP
        request.apply(Event.SWAP_IN)
        state.memory.swap_in(request)
    else:
        request.apply(Event.RESUME)
    request.run_seq = state.next_run
    state.next_run += 1
    state.running[request.id] = state.apart[request.id] = request
    if state.keeps_records:
        blocks = request.blocks
        state.records.append(Resumed(now_ns, request.id, request.epoch, how, blocks, request.granted, state.next_step))


def _wait(state: InstanceState, policy: PolicySet, victim: LiveRequest) -> None:
    if policy.requeue is Place.FRONT:
        state.waiting.push_front(victim)
    elif policy.requeue is Place.BACK:
        state.waiting.push_back(victim, policy.order.key(victim))
    else:
        state.waiting.push(victim, policy.order.key(victim))


def _stand_by(state: InstanceState, policy: PolicySet, request: LiveRequest) -> None:
    state.stopped[request.id] = request
    if policy.queues_stopped:
        state.waiting.push(request, policy.order.key(request))


def _swap_out(
    state: InstanceState, policy: PolicySet, victim: LiveRequest, why: Stop, remedy: Remedy
) -> Deferral | None:
    """Put the KV of a request aside in host memory; why not, if there is no room."""
    tokens = victim.granted if why.revoked is None else why.revoked.start
    shortage = state.memory.swap_out(victim, tokens)
    if shortage is not None:
        return shortage
    epoch, paused = victim.epoch, victim.state is State.PAUSED
    victim.apply(Event.SWAP_OUT)
    state.released.append(victim.id)
    victim.restart(why.revoked)
    if not paused:
        _stand_by(state, policy, victim)
    if state.keeps_records:
        blocks, step, times = len(victim.host_table), state.next_step, remedy[1:]
        record: Paused | Swapped
        if paused:
            record = Swapped(why.now_ns, victim.id, victim.epoch, HOST, blocks, tokens, step, *times)
        else:
            at = (why.now_ns, victim.id, epoch, SWAP, why.reason.value, blocks, tokens, step)
            record = Paused(*at, copy_ns=remedy.copy_ns, recompute_ns=remedy.recompute_ns)
        state.records.append(record)
    return None
