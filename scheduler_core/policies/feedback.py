"""What the last rounds were like, handed to parts that adapt to it, with a stated lag (C6)."""

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from scheduler_core.sched.policy import Chunk, PolicySet
from scheduler_core.sched.view import RequestView, View
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.types.plan import Grant, Phase
from scheduler_core.types.reasons import Outcome
from scheduler_core.types.time import Ns, ns_from_ms

_DECODE = Phase.DECODE
SHRINK, GROWTH_STEPS = 0.75, 16


class Round(NamedTuple):
    """A step that has come back: how long it took, who decoded, and what stood around it when it was planned."""

    step_ns: Ns
    decodes: int
    prefill_tokens: int
    waiting: int
    kv_used: int


class LastRounds:
    """The rounds that policies may look at: those that ended at least ``lag`` rounds ago. It reads no clock.

    A round lasts from its planning to the next one. Where nobody of it is left, nothing follows it at once, and it is
    left out: the time until the next arrival is no step.
    """

    def __init__(self, lag: int) -> None:
        self._lag = lag
        self._rounds: deque[Round] = deque(maxlen=lag + 1)
        self._open: tuple[Ns, Round] | None = None
        self._alive: set[int] = set()

    def seen(self) -> Round | None:
        """The newest round that may be looked at, or None while there is none."""
        return self._rounds[0] if len(self._rounds) > self._lag else None

    def begun(self, now_ns: Ns) -> bool:
        """A step is about to be planned; true when the one before it has ended as a round."""
        ended = self._open is not None and bool(self._alive)
        if self._open is not None and ended:
            since_ns, what = self._open
            self._rounds.append(what._replace(step_ns=now_ns - since_ns))
        self._open = None
        return ended

    def planned(self, view: View, grants: Mapping[int, Grant]) -> None:
        """Note what was planned."""
        decodes = sum(grant.phase is _DECODE for grant in grants.values())
        prefill = sum(grant.length for grant in grants.values() if grant.phase is not _DECODE)
        self._alive = set(grants)
        if grants:
            what = Round(0, decodes, prefill, view.waiting, view.total_blocks - view.free_blocks)
            self._open = (view.now_ns, what)

    def ended(self, request: int) -> None:
        """A request is over."""
        self._alive.discard(request)


class AdaptiveChunk:
    """Prompt tokens of a step, as many as keep steps with decodes below a target: less after a long one, more after a
    short one (additive increase, multiplicative decrease).

    A step that decodes takes at most ``allowance`` tokens in all; one without decodes is not limited. The allowance
    stays between one block and the budget, so every prompt comes through.
    """

    def __init__(self, inner: Chunk, target_ns: Ns, limits: tuple[int, int], lag: int) -> None:
        self._inner = inner
        self._target_ns = target_ns
        self._least, self._budget = limits
        self.allowance = self._budget
        self._rounds = LastRounds(lag)
        self._decoding = False

    def limit(self, request: RequestView, want: int, view: View) -> int:
        """See `scheduler_core.sched.policy.Chunk`."""
        most = self._inner.limit(request, want, view)
        if not request.prefilling or not self._decoding:
            return most
        return min(most, max(0, self.allowance - (self._budget - view.budget_left)))

    def begun(self, now_ns: Ns) -> None:
        """Adapt to the newest round that may be looked at."""
        if not self._rounds.begun(now_ns):
            return
        seen = self._rounds.seen()
        if seen is None or not seen.decodes:
            return
        if seen.step_ns > self._target_ns:
            self.allowance = max(self._least, int(self.allowance * SHRINK))
        else:
            self.allowance = min(self._budget, self.allowance + max(1, self._budget // GROWTH_STEPS))

    def planned(self, view: View, grants: Mapping[int, Grant]) -> None:
        """Note the step; the next one decodes for whoever has caught up by it."""
        self._rounds.planned(view, grants)
        self._decoding = any(grant.samples for grant in grants.values())

    def ended(self, request: RequestView, outcome: Outcome) -> None:
        """It has no part in what follows."""
        self._rounds.ended(request.id)


def with_feedback(policy: PolicySet, spec: PolicySpec) -> PolicySet:
    """``policy`` with what the resolved ``spec`` adapts to the last rounds; nothing set leaves it as it is."""
    if spec.feedback.step_ms is None or not policy.limits.chunked:
        return policy
    limits = (policy.limits.block_size, policy.limits.token_budget)
    chunk = AdaptiveChunk(policy.chunk, ns_from_ms(spec.feedback.step_ms), limits, spec.feedback.lag or 1)
    return replace(policy, chunk=chunk, observers=(*policy.observers, chunk))
