"""Token budgets of a step by phase: so many prompt tokens, so many decodes, whatever the other phase leaves."""

from dataclasses import dataclass, replace

from scheduler_core.sched.policy import Chunk, PolicySet
from scheduler_core.sched.view import RequestView, View
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.types.plan import Phase

_DECODE = Phase.DECODE


@dataclass(frozen=True, slots=True)
class PhaseBudgets:
    """What the inner rule allows, and of a step at most ``prefill`` prompt tokens and ``decode`` decodes; 0: no bound.

    Requests are served in their order until a budget is spent: of decodes, those admitted first, so everybody's turn
    comes. Tokens computed again after a preemption count as prompt tokens; who comes in, or back, is asked only for
    its prompt tokens. ``budget`` is that of all phases.
    """

    inner: Chunk
    budget: int
    prefill: int = 0
    decode: int = 0

    def limit(self, request: RequestView, want: int, view: View) -> int:
        """See `scheduler_core.sched.policy.Chunk`."""
        most = self.inner.limit(request, want, view)
        if request.phase() is _DECODE:
            return min(most, max(0, self.decode - view.decodes)) if self.decode else most
        spent = self.budget - view.budget_left - view.decodes - view.drafted
        return min(most, max(0, self.prefill - spent)) if self.prefill else most


def with_phase_budgets(policy: PolicySet, spec: PolicySpec) -> PolicySet:
    """``policy`` with the budgets by phase that the resolved ``spec`` sets; without any it stays as it is."""
    prefill, decode = spec.batch.prefill_budget or 0, spec.batch.decode_budget or 0
    if not prefill and not decode:
        return policy
    chunk = PhaseBudgets(policy.chunk, policy.limits.token_budget, prefill, decode)
    return replace(policy, chunk=chunk, limits=replace(policy.limits, by_phase=True))
