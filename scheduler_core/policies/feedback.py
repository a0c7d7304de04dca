"""Parts that adapt to the last rounds: the chunk, how many may wait, and the room that is kept free (C6)."""

from dataclasses import replace

from scheduler_core.policies.gatekeeper import AdaptiveQueue, Gatekeeper
from scheduler_core.policies.rounds import GROWTH_STEPS, SHRINK, Figures, LastRounds
from scheduler_core.sched.decisions import Deferral
from scheduler_core.sched.policy import Admission, Chunk, PolicySet
from scheduler_core.sched.view import RequestView, View
from scheduler_core.spec.policy import AdmissionSection, FeedbackSection, PolicySpec
from scheduler_core.types.errors import InputError, Problem
from scheduler_core.types.time import Ns, ns_from_ms

DEFAULT_WINDOW = 64


class AdaptiveChunk:
    """Prompt tokens of a step, as many as keep steps with decodes below a target: less after a long one, more after a
    short one (additive increase, multiplicative decrease).

    A step that decodes takes at most ``allowance`` tokens in all; one without decodes is not limited. The allowance
    stays between one block and the budget, so every prompt comes through.
    """

    def __init__(self, inner: Chunk, target_ns: Ns, limits: tuple[int, int], rounds: LastRounds) -> None:
        self._inner = inner
        self._target_ns = target_ns
        self._least, self._budget = limits
        self.allowance = self._budget
        self._rounds = rounds

    def limit(self, request: RequestView, want: int, view: View) -> int:
        """See `scheduler_core.sched.policy.Chunk`."""
        most = self._inner.limit(request, want, view)
        if not request.prefilling or not self._rounds.decoding:
            return most
        return min(most, max(0, self.allowance - (self._budget - view.budget_left)))

    def adapt(self, figures: Figures) -> None:
        """Less after a long step, more after a short one; steps without decodes say nothing."""
        if not figures.newest.decodes:
            return
        if figures.newest.step_ns > self._target_ns:
            self.allowance = max(self._least, int(self.allowance * SHRINK))
        else:
            self.allowance = min(self._budget, self.allowance + max(1, self._budget // GROWTH_STEPS))


class AdaptiveWatermark:
    """Blocks kept free when a request is admitted beside running ones: doubled after a window in which requests came
    back that had lost theirs, a quarter less after one without, between none and ``most``."""

    def __init__(self, inner: Admission, most: int, window: int) -> None:
        self._inner, self._most, self._window = inner, most, window
        self._rounds = 0
        self.kept = 0

    def decide(self, reserve_blocks: int, room_blocks: int, view: View) -> Deferral | None:
        """See `scheduler_core.sched.policy.Admission`."""
        return self._inner.decide(reserve_blocks, room_blocks - (self.kept if view.running else 0), view)

    def adapt(self, figures: Figures) -> None:
        """Look once a window, so that what was changed has had its effect."""
        self._rounds += 1
        if self._rounds < self._window:
            return
        self._rounds = 0
        if figures.restarts:
            self.kept = min(self._most, max(1, self._most // GROWTH_STEPS, 2 * self.kept))
        else:
            self.kept = int(self.kept * SHRINK)


def with_feedback(policy: PolicySet, spec: PolicySpec) -> PolicySet:
    """``policy`` with what the resolved ``spec`` adapts to the last rounds; nothing set leaves it as it is.

    Raises:
        InputError: the admission is to adapt, and the policy has a gate of its own.
    """
    asked, limits = spec.feedback, policy.limits
    if not asked.adapts:
        return policy
    window = asked.window or DEFAULT_WINDOW
    rounds = LastRounds(asked.lag or 1, window, limits.promises)
    policy = replace(policy, observers=(rounds, *policy.observers))
    if asked.step_ms is not None and limits.chunked:
        bounds = (limits.block_size, limits.token_budget)
        chunk = AdaptiveChunk(policy.chunk, ns_from_ms(asked.step_ms), bounds, rounds)
        rounds.parts.append(chunk)
        policy = replace(policy, chunk=chunk)
    if asked.watermark:
        admission = AdaptiveWatermark(policy.admission, int(asked.watermark * limits.kv_blocks), window)
        rounds.parts.append(admission)
        policy = replace(policy, admission=admission)
    return _with_adaptive_gate(policy, asked, rounds)


def _with_adaptive_gate(policy: PolicySet, asked: FeedbackSection, rounds: LastRounds) -> PolicySet:
    if not asked.attainment:
        return policy
    gate = policy.gate
    if gate is None:
        gate = Gatekeeper(AdmissionSection(), policy.limits.prefill_token_ns)
        policy = replace(policy, gate=gate, observers=(*policy.observers, gate))
    if not isinstance(gate, Gatekeeper):
        message = f"policy {policy.name!r} has a gate of its own, which adapts to nothing"
        raise InputError([Problem("feedback.attainment", message)])
    gate.queue = AdaptiveQueue(asked.attainment, asked.window or DEFAULT_WINDOW)
    rounds.parts.append(gate.queue)
    return policy
