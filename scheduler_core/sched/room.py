"""Whether budget and blocks suffice for what a pass is about to grant, and who may give up some."""

from collections.abc import Callable, Collection

from scheduler_core.request.live import LiveRequest
from scheduler_core.sched.decisions import Serve
from scheduler_core.sched.memory import Memory, shortage
from scheduler_core.sched.policy import Chunk
from scheduler_core.sched.state import InstanceState
from scheduler_core.sched.view import View
from scheduler_core.types.plan import Grant

_ALL = Serve.ALL
_PREFILLS = Serve.PREFILLS


def cramped(
    state: InstanceState, granted: Collection[int], serve: Serve, drafts: Callable[[LiveRequest, int], int] | None
) -> bool:
    """Whether there are too few blocks for the next token, and its ``drafts``, of everybody whom ``serve`` means."""
    memory, cohort = state.memory, state.cohort
    need = cohort.growth() if cohort.count and serve is not _PREFILLS else 0
    for request in state.apart.values():
        if request.id not in granted and (serve is _ALL or request.prefilling == (serve is _PREFILLS)):
            need += shortage(memory, request, 1 + (drafts(request, 1) if drafts else 0))
    return need > memory.free


def separable(state: InstanceState, chunk: Chunk, view: View, serve: Serve, left: tuple[int, int]) -> bool:
    """Whether serving all members first gives what the running order gives; ``left`` are budget and blocks after that.

    It does when no request apart comes before one of them, or all fit together.
    """
    apart = [r for r in state.apart.values() if serve is _ALL or not r.prefilling]
    if not apart or apart[0].run_seq > state.cohort.newest:
        return True
    wanted = [(r, min(r.debt, chunk.limit(r, r.debt, view))) for r in apart]
    blocks = sum(shortage(state.memory, request, length) for request, length in wanted)
    return sum(length for _, length in wanted) <= left[0] and blocks <= left[1]


def relied_on(memory: Memory, request: LiveRequest, grant: Grant | None) -> bool:
    """Whether somebody let in in this step counts on what ``grant`` computes, or its request has only just come in."""
    return grant is not None and (grant.start == grant.hit_tokens or memory.shared(request, grant))
