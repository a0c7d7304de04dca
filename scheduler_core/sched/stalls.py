"""Who is resident and got nothing in a step, and why."""

from collections.abc import Mapping

from scheduler_core.sched.state import InstanceState
from scheduler_core.types.plan import Grant, Phase
from scheduler_core.types.reasons import Stall

# Bound once: in CPython 3.11 reading a member off its enum class costs ten times a global.
_DECODE = Phase.DECODE
_IN_FLIGHT = Stall.IN_FLIGHT


def stalled(
    state: InstanceState, grants: Mapping[int, Grant], decoders: int, budget_left: int
) -> tuple[tuple[int, str], ...]:
    """Resident requests with no part in ``grants``, with the cause; ``decoders`` are served beside them."""
    if len(grants) + decoders == len(state.running):
        return ()
    cause = stall_cause(grants, budget_left)
    return tuple(
        (number, (_IN_FLIGHT if request.granted > request.confirmed else cause).value)
        for number, request in state.apart.items()
        if number not in grants
    )


def stall_cause(grants: Mapping[int, Grant], budget_left: int) -> Stall:
    """Why a resident request that waits for nothing in flight got none of ``grants``."""
    if not budget_left:
        return Stall.BUDGET_SPENT
    prefill = any(grant.phase is not _DECODE for grant in grants.values())
    return Stall.OTHERS_PREFILL if prefill else Stall.HELD_BY_POLICY
