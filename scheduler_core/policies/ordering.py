"""From the order section of a policy to its parts; the same for every preset that takes the section."""

from collections.abc import Callable
from dataclasses import replace

from scheduler_core.policies.mlfq import LevelRules, LowestLevel, SkipJoinLevels
from scheduler_core.policies.orders import (
    EarlierTakesSlot,
    EarliestDeadline,
    LeastServed,
    LongestOutput,
    ResponseRatio,
    ShortestPrefill,
    ShortestRemaining,
)
from scheduler_core.policies.parts import ByArrival, ByPriority, Nobody, UrgentTakesSlot, WorstPriority
from scheduler_core.policies.pool import with_prefix_order
from scheduler_core.policies.predicting import predictor_of
from scheduler_core.policies.predictors import DeclaredLimit
from scheduler_core.sched.decisions import Place
from scheduler_core.sched.policy import Order, PolicySet, Victim
from scheduler_core.spec.policy import OrderSection, PolicySpec
from scheduler_core.types.time import NS_PER_MS, NS_PER_US, Ns, ns_from_ms

STARVATION_MS = 30_000.0
UNBOUNDED = ("longest", "response_ratio", "prefix_tree")
"""Orders without a bound of their own. Priority has none either, as in vLLM: there it must be asked for."""

LEVELS = LevelRules()


def with_order(policy: PolicySet, spec: PolicySpec) -> PolicySet:
    """``policy`` with the order, and the bound on waiting, that the resolved ``spec`` names."""
    name = spec.order.by or "arrival"
    if name == "arrival":
        return policy
    return replace(_ORDERS[name](policy, spec), starvation_ns=_starvation(spec.order, name))


def _starvation(order: OrderSection, name: str) -> Ns | None:
    bound = order.starvation_ms
    if bound is None:
        if name == "levels":
            return LEVELS.starvation_ns
        bound = STARVATION_MS if name in UNBOUNDED or order.length == "hidden" else 0.0
    return ns_from_ms(bound) or None


def _by_key(policy: PolicySet, order: Order) -> PolicySet:
    back = policy.requeue is Place.BACK  # which then means: last of its key
    return replace(policy, order=order, requeue=Place.BACK if back else Place.BY_KEY)


def _priority(policy: PolicySet, spec: PolicySpec) -> PolicySet:
    order = ByPriority(by_entry=policy.requeue is Place.BACK)
    return replace(_by_key(policy, order), victim=_or_nobody(policy, WorstPriority()))


def _urgency(policy: PolicySet, spec: PolicySpec) -> PolicySet:
    return replace(_priority(policy, spec), slots=UrgentTakesSlot())


def _or_nobody(policy: PolicySet, victim: Victim) -> Victim:
    """Where nobody is ever stopped for a block, that stays so."""
    return policy.victim if isinstance(policy.victim, Nobody) else victim


def _shortest(policy: PolicySet, spec: PolicySpec) -> PolicySet:
    if spec.order.length == "hidden":
        return _by_key(policy, LeastServed())
    predictor = predictor_of(policy) if spec.order.length == "predicted" else DeclaredLimit()
    order = ShortestRemaining(predictor, round((spec.order.age_ms_per_token or 10) * NS_PER_MS))
    return _taking_slots(_by_key(policy, order), spec)


def _shortest_prefill(policy: PolicySet, spec: PolicySpec) -> PolicySet:
    return _by_key(policy, ShortestPrefill(round((spec.order.age_ms_per_token or 0.1) * NS_PER_MS)))


def _longest(policy: PolicySet, spec: PolicySpec) -> PolicySet:
    return _by_key(policy, LongestOutput())


def _response_ratio(policy: PolicySet, spec: PolicySpec) -> PolicySet:
    ratio, order = ResponseRatio(), ByArrival(first_come=False)
    policy = replace(policy, order=order, arrange=ratio, requeue=Place.BACK)
    return replace(policy, observers=(*policy.observers, ratio))


def _deadline(policy: PolicySet, spec: PolicySpec) -> PolicySet:
    order = EarliestDeadline(
        policy.limits.promises, _prefill_token_ns(policy, spec), ns_from_ms(spec.order.best_effort_ms or 60_000)
    )
    return _taking_slots(_by_key(policy, order), spec)


def _levels(policy: PolicySet, spec: PolicySpec) -> PolicySet:
    order = spec.order
    rules = LevelRules(
        levels=order.levels or LEVELS.levels,
        quantum_ns=LEVELS.quantum_ns if order.quantum_ms is None else ns_from_ms(order.quantum_ms),
        prefill_token_ns=_prefill_token_ns(policy, spec),
        starvation_ns=_starvation(order, "levels"),
    )
    levels = SkipJoinLevels(rules)
    policy = replace(_by_key(policy, levels), slots=levels, victim=_or_nobody(policy, LowestLevel(levels)))
    return replace(policy, observers=(*policy.observers, levels), admits_after_preemption=True)


def _prefill_token_ns(policy: PolicySet, spec: PolicySpec) -> float:
    given = spec.order.prefill_us_per_token
    return policy.limits.prefill_token_ns if given is None else given * NS_PER_US


def _taking_slots(policy: PolicySet, spec: PolicySpec) -> PolicySet:
    if not spec.order.takes_slots:
        return policy
    return replace(policy, slots=EarlierTakesSlot(policy.order, fresh_only=spec.order.by == "deadline"))


_ORDERS: dict[str, Callable[[PolicySet, PolicySpec], PolicySet]] = {
    "priority": _priority,
    "urgency": _urgency,
    "shortest": _shortest,
    "shortest_prefill": _shortest_prefill,
    "longest": _longest,
    "response_ratio": _response_ratio,
    "deadline": _deadline,
    "levels": _levels,
    "longest_prefix": with_prefix_order,
    "prefix_tree": with_prefix_order,
}
