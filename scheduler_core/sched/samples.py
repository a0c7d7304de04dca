"""Parallel samples of one prompt share its KV: the first one computes it, the others wait for that, then copy on write.

After the paged attention paper (Kwon et al., arXiv 2309.06180, section 4.4): full blocks of the prompt are shared by
reference count; the block that the prompt fills in part is copied when a sample first writes to it while others hold
it. Here the first sample goes on writing in place, and each other one gets its copy at admission, as its first grant
computes the prompt's last token again to draw from it, and so writes at once. With P prompt tokens and blocks of b::

    0 ............. (P - 1) // b * b ....... P - 1 ......... P
      shared blocks                   copied        computed

A sample that comes back after a preemption shares all P tokens in the same way, and goes on behind them.
"""

from scheduler_core.kv.prefix import SharedHits
from scheduler_core.request.lifecycle import State
from scheduler_core.request.live import LiveRequest
from scheduler_core.sched.decisions import Deferral
from scheduler_core.sched.state import InstanceState
from scheduler_core.types.reasons import Defer

# Bound once: in CPython 3.11 reading a member off its enum class costs ten times a global.
_RUNNING = State.RUNNING
_PROMPT_PENDING = Defer.PROMPT_PENDING


def wait_for_prompt(state: InstanceState, request: LiveRequest) -> Deferral | None:
    """Why ``request`` does not come in yet: the first sample is computing the prompt.

    It never waits for one that was stopped, is over or waits itself: then it is served as any request. So whoever it
    waits for runs, and moves.
    """
    first = _first(state, request)
    if first is None or first.state is not _RUNNING:
        return None
    prompt = first.spec.prompt_tokens
    if first.confirmed >= prompt and state.memory.share(request, first) is not None:
        return None
    return Deferral(_PROMPT_PENDING, prompt, min(first.confirmed, prompt), skip=True)


def shared_prompt(state: InstanceState, request: LiveRequest) -> SharedHits | None:
    """The prompt of ``request`` in blocks of the first sample; None where that has not all of it on the device."""
    first = _first(state, request)
    if first is None or not first.blocks or first.confirmed < first.spec.prompt_tokens:
        return None
    return state.memory.share(request, first)


def _first(state: InstanceState, request: LiveRequest) -> LiveRequest | None:
    """The first sample of the prompt of ``request``, if that is another one, and live here."""
    group = request.spec.group
    return None if group is None or group == request.id or request.blocks else state.requests.get(group)
