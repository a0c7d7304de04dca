"""What letting a waiting request in means, whoever plans the step."""

from collections.abc import Hashable, Sequence

from scheduler_core.kv.prefix import Hits
from scheduler_core.request.lifecycle import Event
from scheduler_core.request.live import LiveRequest
from scheduler_core.sched.aging import AgedQueue, HeldQueue
from scheduler_core.sched.decisions import Deferral
from scheduler_core.sched.memory import pledge
from scheduler_core.sched.policy import Arrange, Limits
from scheduler_core.sched.state import InstanceState
from scheduler_core.sched.view import RequestView
from scheduler_core.sched.waiting import ArrivalQueue
from scheduler_core.types.records import Deferred
from scheduler_core.types.time import Ns

# Bound once: in CPython 3.11 reading a member off its enum class costs ten times a global.
_ADMIT = Event.ADMIT


class _Beginnings:
    """The prefix cache as `scheduler_core.sched.view.Beginnings`."""

    __slots__ = ("_memory", "_requests")

    def __init__(self, state: InstanceState) -> None:
        self._memory, self._requests = state.memory, state.requests

    @property
    def block_size(self) -> int:
        return self._memory.block_size

    def hit_tokens(self, request: RequestView) -> int:
        return self._memory.found(self._requests[request.id])[1] * self._memory.block_size

    def hit_keys(self, request: RequestView) -> Sequence[Hashable]:
        keys, cached = self._memory.found(self._requests[request.id])
        return keys[:cached]

    def keys(self, request: RequestView) -> Sequence[Hashable]:
        return self._memory.found(self._requests[request.id])[0]


def arrange(state: InstanceState, order: Arrange) -> None:
    """Put those who wait into the order of this step."""
    assert isinstance(
        state.waiting, ArrivalQueue | AgedQueue | HeldQueue
    )  # what `queue_of` gives policies that arrange
    arranged = order.arrange(list(state.waiting), _Beginnings(state))
    state.waiting.arrange([request.id for request in arranged])


def worst_waiting(state: InstanceState) -> LiveRequest | None:
    """The waiting request of the largest priority number, of those the newest. O(waiting)."""
    return max(state.waiting, key=lambda request: (request.spec.priority, request.seq), default=None)


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
        most = most if most < left else left
        return want if want < most else most
    if want <= left:
        return want
    outgrown = head.preemptions > 0 and want > limits.token_budget
    return left if outgrown and left == limits.token_budget else 0


def note_deferral(state: InstanceState, deferral: tuple[LiveRequest, Deferral] | None, now_ns: Ns) -> None:
    """Record who was passed over and why, where that has changed since it was recorded last."""
    if deferral is None:
        state.deferred = None
        return
    request, why = deferral
    mark = (request.id, why.reason.value)
    if mark != state.deferred:
        state.deferred = mark
        state.records.append(Deferred(now_ns, request.id, why.reason.value, why.need, why.have))


def start(state: InstanceState, request: LiveRequest, hits: Hits, *, promised_blocks: int) -> None:
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
