"""What letting a waiting request in means, whoever plans the step."""

from scheduler_core.request.lifecycle import Event
from scheduler_core.request.live import LiveRequest
from scheduler_core.sched.memory import pledge
from scheduler_core.sched.policy import Limits
from scheduler_core.sched.state import InstanceState

# Bound once: in CPython 3.11 reading a member off its enum class costs ten times a global.
_ADMIT = Event.ADMIT


def first_length(head: LiveRequest, want: int, *, most: int, left: int, limits: Limits) -> int:
    """Tokens of an admission's first grant; 0 when it has to wait for budget.

    Args:
        head: The request, with ``want`` tokens to compute.
        want: Its tokens beyond those found in the cache.
        most: What the policy's chunk rule allows in one grant; counts only with chunking.
        left: Budget left in this step.
        limits: The instance's.

    Without chunking a request comes whole or not at all (V-08). One that outgrew the whole budget before it was
    preempted is served in pieces all the same: it could never come back otherwise.
    """
    if limits.chunked:
        return min(want, most, left)
    if want <= left:
        return want
    outgrown = head.preemptions > 0 and want > limits.token_budget
    return left if outgrown and left == limits.token_budget else 0


def start(state: InstanceState, request: LiveRequest, hits: list[int], *, promised_blocks: int) -> None:
    """Take a request from the queue into the running order with the blocks found, and keep what it was promised."""
    state.waiting.remove(request)
    request.apply(_ADMIT)
    request.run_seq = state.next_run
    state.next_run += 1
    state.running[request.id] = state.apart[request.id] = request
    request.hit_tokens = request.granted  # delivered from another instance, else nothing
    if hits:
        state.memory.adopt(request, hits)
    if request.blocks and state.lodged:
        state.lodged.pop(request.id, None)
    if promised_blocks:
        pledge(state.memory, request, promised_blocks)
