"""Forgetting what the prefix cache holds, by order of an operator: the weights have changed, say (V-26).

A reset takes effect before the first planning at or after its moment at which no step is in flight; nothing is planned
until then. So no output of a step is discarded, and what was computed before the moment is never mixed with what comes
after it.
"""

from scheduler_core.request.live import LiveRequest
from scheduler_core.sched.commit import release_batch
from scheduler_core.sched.moving import revoke_lodged
from scheduler_core.sched.policy import PolicySet
from scheduler_core.sched.state import InstanceState, Reset
from scheduler_core.sched.stopping import Stop, requeue
from scheduler_core.types.reasons import Preempt
from scheduler_core.types.records import CacheReset
from scheduler_core.types.time import Ns


def ask_reset(state: InstanceState, asked: Reset) -> None:
    """A reset is due; one that waits already is done together with it, at the force of either."""
    waits = state.reset
    state.reset = asked if waits is None else Reset(waits.at_ns, waits.force or asked.force)


def due_reset(state: InstanceState, policy: PolicySet, now_ns: Ns) -> bool:
    """Carry out a reset that waits; true while it has to wait for a step in flight, so that nothing may be planned."""
    asked = state.reset
    if asked is None:
        return False
    if state.in_flight:
        return True
    state.reset = None
    _reset(state, policy, asked, now_ns)
    return False


def _reset(state: InstanceState, policy: PolicySet, asked: Reset, now_ns: Ns) -> None:
    """Carry out a reset while no step is in flight.

    It succeeds only when no block is in use, on the device or by a swapped request in the host; else nothing changes.
    The forced variant preempts all running requests first, the newest before the others, and takes what stopped and
    delivered ones hold; they compute all of their tokens again. Blocks of requests on their way between instances are
    nobody's to take, so that it may fail all the same.
    """
    preempted = _stop_all(state, policy, now_ns) if asked.force else 0
    memory = state.memory
    in_use = memory.used + memory.host.held
    dropped = 0 if in_use else memory.forget()
    if state.keeps_records:
        done = not in_use
        state.records.append(CacheReset(now_ns, asked.at_ns, asked.force, done, in_use, preempted, dropped))


def _stop_all(state: InstanceState, policy: PolicySet, now_ns: Ns) -> int:
    """Everybody who can gives up their blocks; how many had to."""
    why = Stop(Preempt.CACHE_RESET, now_ns)
    if state.aged is not None:
        state.aged.begin(now_ns)
    stopped = sorted(state.stopped.values(), key=_admission, reverse=True)
    running = list(reversed(state.running.values()))
    for request in running:
        state.leave_running(request)
        requeue(state, policy, request, why)
    for request in stopped:
        requeue(state, policy, request, why)
    release_batch(state)
    count = len(running) + len(stopped)
    while revoke_lodged(state, but=None, now_ns=now_ns):
        count += 1
    return count


def _admission(request: LiveRequest) -> int:
    return request.run_seq
