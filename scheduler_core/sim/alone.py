"""How long a request takes with the device to itself: what fairness measures slowdown against."""

from collections.abc import Callable
from functools import lru_cache

from scheduler_core.sim.cost import StepCost
from scheduler_core.spec.target import Profile
from scheduler_core.types.shape import causal_pairs
from scheduler_core.types.time import Ns

Alone = Callable[[int, int], Ns]


def alone_e2e(profile: Profile, token_budget: int) -> Alone:
    """(prompt tokens, output tokens) -> calibrated time from arrival to last token, nothing cached and nobody else.

    The prompt is computed in steps of at most ``token_budget`` (0: in one), the last of which gives the first token;
    each further token takes a step, whose time is linear in the context, so the mean context stands for all.
    """
    cost = StepCost(profile)

    @lru_cache(maxsize=65_536)
    def alone(prompt: int, output: int) -> Ns:
        budget = token_budget or prompt
        total, start = 0, 0
        while start < prompt:
            length = min(budget, prompt - start)
            joined = 0 if start else 1
            total += cost.duration_ns(length, 0, 0, causal_pairs(start, length), 1, joined)
            start += length
        further = output - 1
        if further > 0:
            total += further * cost.duration_ns(0, 1, prompt + (output + 1) // 2, 0, 1)
        return total

    return alone
