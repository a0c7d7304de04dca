"""Admission at the gate: queue, throttle, reject or degrade, each by its trigger (A0 to A3)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from scheduler_core.policies.rounds import GROWTH_STEPS, SHRINK, Figures
from scheduler_core.request.spec import RequestSpec
from scheduler_core.sched.gate import GateAnswer, GateInputs
from scheduler_core.sched.policy import PolicySet
from scheduler_core.sched.view import RequestView, View
from scheduler_core.spec.policy import AdmissionSection, PolicySpec
from scheduler_core.types.plan import Grant, Phase
from scheduler_core.types.reasons import Disposal, Outcome
from scheduler_core.types.time import NS_PER_S, Ns, ns_from_ms, ns_from_s

_DECODE = Phase.DECODE
ROUNDS = 64
"""Steps over which the speed of prefill is measured, for the estimate of a wait."""


def with_gate(policy: PolicySet, spec: PolicySpec) -> PolicySet:
    """``policy`` with the gate that the resolved ``spec`` asks for; without any trigger there is none."""
    if all(value is None for _, value in spec.admission):
        return policy
    gate = Gatekeeper(spec.admission, policy.limits.prefill_token_ns)
    return replace(policy, gate=gate, observers=(*policy.observers, gate))


class Bucket:
    """A token bucket as the time at which it would be full again (GCRA): exact, and nothing to refill."""

    def __init__(self, rate_per_s: float, burst_ns: Ns) -> None:
        self._ns_per_unit = NS_PER_S / rate_per_s
        self._burst_ns = burst_ns
        self._full_ns: Ns = 0

    def take(self, units: int, now_ns: Ns) -> Ns:
        """Draw ``units``; returns when they may be used, at the earliest now. Nobody is passed by a later one."""
        start = max(now_ns, self._full_ns)
        self._full_ns = start + round(units * self._ns_per_unit)
        return max(now_ns, start - self._burst_ns)


class AdaptiveQueue:
    """How many requests may wait, so that those let in keep the promise on their first token.

    After every window of rounds: a quarter less than waited (or were allowed, if that is less) when fewer than
    ``target`` kept it, a sixteenth more when they did. Before the first miss everybody may wait; one always may.
    """

    def __init__(self, target: float, window: int) -> None:
        self._target, self._window = target, window
        self._rounds = 0
        self.allowance: int | None = None
        self.attainment: float | None = None

    def adapt(self, figures: Figures) -> None:
        """Look once a window, so that what was changed has had its effect."""
        self._rounds += 1
        if self._rounds < self._window or figures.attainment is None:
            return
        self._rounds = 0
        self.attainment = figures.attainment
        if figures.attainment < self._target:
            waited = math.ceil(figures.waiting)
            most = waited if self.allowance is None else min(waited, self.allowance)
            self.allowance = max(1, int(most * SHRINK))
        elif self.allowance is not None:
            self.allowance += max(1, self.allowance // GROWTH_STEPS)


class _Limit(NamedTuple):
    trigger: str
    have: int
    most: int


@dataclass(slots=True)
class Gatekeeper:
    """Decides in this order: reject, degrade, throttle, queue; the first trigger that is passed counts.

    Estimated wait: prompt tokens that wait, times what one took over the last 64 steps (before the first: by the
    target's estimate). Tokens of a request, for the bucket: prompt and declared limit. With a ``queue`` that adapts,
    newcomers beyond its allowance are rejected too.
    """

    spec: AdmissionSection
    prefill_token_ns: float
    queue: AdaptiveQueue | None = None
    _buckets: dict[str, list[Bucket]] = field(default_factory=dict)
    _queued: dict[int, int] = field(default_factory=dict)
    _queued_tokens: int = 0
    _rounds: list[tuple[Ns, int]] = field(default_factory=list)

    def decide(self, spec: RequestSpec, occupancy: tuple[int, int, int], now_ns: Ns) -> GateAnswer:
        """See `scheduler_core.sched.gate.Gate`."""
        inputs = self._inputs(spec, occupancy, now_ns)
        reached = self._passed(inputs, "reject")
        if reached is not None:
            return GateAnswer(Disposal.REJECT, spec, inputs, *reached)
        reached = self._passed(inputs, "degrade")
        taken = spec if reached is None else self._degraded(spec)
        disposal = Disposal.QUEUE if taken == spec else Disposal.DEGRADE
        until = self._until(taken, now_ns)
        self._queued[spec.id] = spec.prompt_tokens
        self._queued_tokens += spec.prompt_tokens
        if disposal is Disposal.QUEUE and until > now_ns:
            return GateAnswer(Disposal.THROTTLE, spec, inputs, "bucket", until - now_ns, 0, until)
        return GateAnswer(disposal, taken, inputs, *(reached or ("", 0, 0)), until_ns=until)

    def begun(self, now_ns: Ns) -> None:
        """Nothing to do: prefill is counted when it is planned."""

    def planned(self, view: View, grants: Mapping[int, Grant]) -> None:
        """Who gets a grant waits no more; note what the step computes of prompts."""
        prefill = 0
        for grant in grants.values():
            if grant.phase is not _DECODE:
                prefill += grant.length
            self._forget(grant.request)
        if grants:
            self._rounds.append((view.now_ns, prefill))
            del self._rounds[:-ROUNDS]

    def ended(self, request: RequestView, outcome: Outcome) -> None:
        """It waits no more."""
        self._forget(request.id)

    def _forget(self, request: int) -> None:
        self._queued_tokens -= self._queued.pop(request, 0)

    def _inputs(self, spec: RequestSpec, occupancy: tuple[int, int, int], now_ns: Ns) -> GateInputs:
        waiting, used, total = occupancy
        wait = round(self._queued_tokens * self._token_ns())
        work = spec.prompt_tokens + spec.output_limit
        attainment = None if self.queue is None else self.queue.attainment
        return GateInputs(now_ns, waiting, used, total, self._queued_tokens, wait, work, spec.tier, attainment)

    def _token_ns(self) -> float:
        computed = sum(prefill for _, prefill in self._rounds[:-1])
        if not computed:
            return self.prefill_token_ns
        return (self._rounds[-1][0] - self._rounds[0][0]) / computed

    def _passed(self, inputs: GateInputs, kind: str) -> _Limit | None:
        """The first limit of ``kind`` that the inputs are over: its name, what there is, and the most there may be."""
        wait_ms, kv_share = getattr(self.spec, f"{kind}_wait_ms"), getattr(self.spec, f"{kind}_kv_share")
        tokens = self.spec.reject_queued_tokens if kind == "reject" else None
        limits: list[_Limit] = []
        if wait_ms is not None:
            limits.append(_Limit("estimated_wait", inputs.wait_ns, ns_from_ms(wait_ms)))
        if tokens is not None:
            limits.append(_Limit("queued_tokens", inputs.queued_tokens, tokens))
        if kv_share is not None:
            limits.append(_Limit("kv_saturated", inputs.kv_used, int(kv_share * inputs.kv_total)))
        if kind == "reject" and self.queue is not None and self.queue.allowance is not None:
            limits.append(_Limit("attainment", inputs.waiting, self.queue.allowance))
        return next((limit for limit in limits if limit.have > limit.most), None)

    def _degraded(self, spec: RequestSpec) -> RequestSpec:
        cap, lower = self.spec.degrade_output_tokens, self.spec.degrade_priority or 0
        limit = spec.output_limit if cap is None else min(cap, spec.output_limit)
        return spec._replace(output_limit=limit, priority=spec.priority + lower)

    def _until(self, spec: RequestSpec, now_ns: Ns) -> Ns:
        owner = spec.tenant if self.spec.throttle_by == "tenant" else ""
        if owner not in self._buckets:
            burst = ns_from_s(1.0 if self.spec.throttle_burst_s is None else self.spec.throttle_burst_s)
            rates = (self.spec.throttle_requests_per_s, self.spec.throttle_tokens_per_s)
            self._buckets[owner] = [Bucket(rate, burst) for rate in rates if rate is not None]
        units = [
            cost
            for cost, rate in ((1, self.spec.throttle_requests_per_s), (_tokens(spec), self.spec.throttle_tokens_per_s))
            if rate is not None
        ]
        times = [bucket.take(cost, now_ns) for bucket, cost in zip(self._buckets[owner], units, strict=True)]
        return max(times, default=now_ns)


def _tokens(spec: RequestSpec) -> int:
    return spec.prompt_tokens + spec.output_limit
