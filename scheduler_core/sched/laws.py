"""The three laws of an instance, checked from its whole state."""

from scheduler_core.request.lifecycle import State
from scheduler_core.request.live import APART
from scheduler_core.sched.moving import check_places
from scheduler_core.sched.policy import Limits
from scheduler_core.sched.state import InstanceState
from scheduler_core.types.errors import LawError
from scheduler_core.types.time import Ns

_STOPPED = (State.PAUSED, State.SWAPPED)


def check_conservation(state: InstanceState) -> None:
    """Blocks: every one in exactly one account, and leases match the tables. O(blocks)."""
    holders = [
        *state.running.values(),
        *state.held,
        *state.stopped.values(),
        *state.parked.values(),
        *state.lodged.values(),
    ]
    grown = [state.cohort.grown(request) for request in holders]
    counts = [request.blocks + more for request, more in zip(holders, grown, strict=True)]
    state.memory.check([request.table for request in holders], counts)
    state.memory.check_host([request.host_table for request in state.stopped.values()])
    pledged = sum(max(0, request.pledge - more) for request, more in zip(holders, grown, strict=True))
    if pledged != state.memory.pledged:
        raise LawError(f"pledges add up to {pledged}, the account says {state.memory.pledged}")


def check_residence(state: InstanceState) -> None:
    """Requests: each in exactly one place, holding blocks only where it may, with sound cursors. O(requests)."""
    for request in state.requests.values():
        waits, runs = request in state.waiting, request.id in state.running
        stops, parks = request.id in state.stopped, request.id in state.parked
        now = request.state
        if (waits, runs, stops, parks) != (
            now is State.QUEUED or (state.queues_stopped and now in _STOPPED),
            now is State.RUNNING,
            now in _STOPPED,
            now is State.PARKED,
        ):
            places = f"waiting {waits}, running {runs}, stopped {stops}, parked {parks}"
            raise LawError(f"request {request.id} is {now.name}; {places}")
        if waits and request.blocks and not stops and request.id not in state.lodged:
            raise LawError(f"waiting request {request.id} holds {request.blocks} blocks")
        if bool(request.host_table) != (now is State.SWAPPED) or (now is State.SWAPPED and request.blocks):
            raise LawError(
                f"request {request.id} is {now.name} with {request.blocks} blocks, host {request.host_table}"
            )
        if (runs and request.joined == APART) != (request.id in state.apart):
            raise LawError(f"request {request.id}: joined {request.joined}, apart {request.id in state.apart}")
        if request.blocks * state.memory.block_size < request.granted + request.drafted:
            held = f"{request.granted} tokens and {request.drafted} drafts"
            raise LawError(f"request {request.id}: {request.blocks} blocks hold {held}")
        wrong = request.check()
        if wrong:
            raise LawError(f"request {request.id}: {wrong}")
    if len(state.apart) + state.cohort.count != len(state.running):
        raise LawError(f"{len(state.apart)} apart + {state.cohort.count} in the cohort != {len(state.running)} running")
    waiting, running = state.queued, len(state.running)
    stopped, parked = len(state.stopped), len(state.parked)
    if waiting + running + stopped + parked != len(state.requests):
        raise LawError(
            f"{waiting} waiting + {running} running + {stopped} stopped + {parked} parked != "
            f"{len(state.requests)} live requests"
        )
    wrong = check_places(state)
    if wrong:
        raise LawError(wrong)


def check_step(state: InstanceState, limits: Limits, granted: int, left: int) -> None:
    """A step being planned: its tokens are the budget, ``granted`` or ``left``, and its requests fit the batch."""
    if granted + left != limits.token_budget or left < 0:
        raise LawError(f"granted {granted} + left {left} != budget {limits.token_budget}")
    if len(state.running) + len(state.held) > limits.size:
        raise LawError(f"{len(state.running)} running + {len(state.held)} held > {limits.size}")


def check_liveness(state: InstanceState, wake_ns: Ns | None) -> None:
    """After planning nothing: unfinished requests need a step in flight, or a time at which the policy changes.

    While requests are parked or blocks pinned, the cluster will say something, and give blocks back at the latest then.
    """
    outside = state.parked or state.pinned
    if state.requests and not outside and not state.in_flight and wake_ns is None:
        head = state.waiting.head()
        raise LawError(
            f"nothing is granted, in flight or due, yet {len(state.waiting)} wait, {len(state.running)} run and "
            f"{len(state.stopped)} are stopped; "
            f"head {head.id if head else None}, last deferral {state.deferred}, free {state.memory.free} of "
            f"{state.memory.total} blocks, pledged {state.memory.pledged}"
        )
