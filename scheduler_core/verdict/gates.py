"""Gates: what the pairs say about the declared primary and guards, with Holm's correction over all of them.

Everything is computed as *benefit* in log ratio: positive is better, whatever the metric's direction.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from scheduler_core.evidence.metrics.latency import censored_name
from scheduler_core.evidence.metrics.registry import METRICS
from scheduler_core.spec.goal import OF_OFFERED, GoalSpec
from scheduler_core.verdict.pairs import Changes, Pair, bounded, changes, differences, relative
from scheduler_core.verdict.schema import Gate, Interval
from scheduler_core.verdict.wording import amount, percent, within

LEAST_PAIRS = 5

Role = Literal["primary", "guard"]
Label = Literal["better", "worse", "same", "undecided", "missing"]


@dataclass(frozen=True, slots=True)
class Claim:
    """One declared gate with its evidence, before judgement.

    ``margin`` is as declared: the least gain of the primary, or the signed relative change a guard still allows.
    """

    metric: str
    role: Role
    margin: float
    changes: Changes
    opinion: float | None = None  # standard error of the mean log ratio by the bootstrap inside runs

    @property
    def lower(self) -> bool:
        """Whether less is better."""
        return METRICS[self.metric].better != "higher"

    @property
    def border(self) -> float:
        """The log ratio at which the gate turns: the margin on the side that the role asks about."""
        if self.role == "primary":
            return math.log1p(-self.margin if self.lower else self.margin)
        return math.log1p(self.margin)

    @property
    def decisive_p(self) -> float:
        """Two-sided p against the border; infinite changes are certain, missing ones never."""
        if self.changes.missing:
            return 1.0
        if not self.changes.finite:
            return 0.0 if one_sided(self.changes) else 1.0
        return self.changes.p_value(self.border)


def one_sided(evidence: Changes) -> float:
    """``inf`` or ``-inf`` when every pair is infinite in that same direction, else 0."""
    first = evidence.logs[0]
    return first if math.isinf(first) and all(value == first for value in evidence.logs) else 0.0


def claims(goal: GoalSpec, pairs: Sequence[Pair], *, exact: bool, extra: dict[str, float] | None = None) -> list[Claim]:
    """The goal's gates with their evidence: primary first, guards in order, then ``extra`` guards not yet there.

    Latency quantiles are read censored: a request that did not finish is infinitely late.
    """
    wanted: list[tuple[str, Role, float]] = [(goal.primary, "primary", goal.better_by)]
    guards: dict[str, float] = {str(name): share for name, share in goal.guard.items()}
    guards |= {name: share for name, share in (extra or {}).items() if name not in guards}
    wanted += [(name, "guard", share) for name, share in guards.items() if name != goal.primary]
    return [
        Claim(name, role, margin, _changes(pairs, name, exact=exact), within_error(pairs, name))
        for name, role, margin in wanted
    ]


def _changes(pairs: Sequence[Pair], metric: str, *, exact: bool) -> Changes:
    if metric in OF_OFFERED:
        return differences(pairs, metric, exact=exact)
    return changes(pairs, censored_name(metric) or metric, exact=exact)


def holm(p_values: Sequence[float], alpha: float) -> list[float]:
    """Level of each test under Holm's step-down procedure: the k-th smallest p gets ``alpha / (n - k + 1)``.

    After the first that fails its level, that level holds for the rest.
    """
    levels = [alpha] * len(p_values)
    left, failed = len(p_values), False
    level = alpha / max(left, 1)
    for place in sorted(range(len(p_values)), key=lambda place: p_values[place]):
        if not failed:
            level = alpha / left
            failed = p_values[place] > level
            left -= 1
        levels[place] = level
    return levels


def judge(found: Sequence[Claim], confidence: float) -> list[Gate]:
    """Gates in the order of the claims, each at its Holm level."""
    levels = holm([claim.decisive_p for claim in found], 1 - confidence)
    return [_gate(claim, 1 - level) for claim, level in zip(found, levels, strict=True)]


def _gate(claim: Claim, confidence: float) -> Gate:
    evidence = claim.changes
    label, state = _missing(claim) or _infinite(claim) or _finite(claim, confidence)
    interval = _interval(evidence, confidence)
    unit = METRICS[claim.metric].unit
    known = not evidence.missing and evidence.finite
    gate = Gate(
        metric=claim.metric,
        role=claim.role,
        unit=unit,
        better="lower" if claim.lower else "higher",
        margin=claim.margin,
        baseline=evidence.baseline,
        candidate=evidence.candidate,
        change=bounded(evidence.change) if known else None,
        interval=interval,
        second_opinion=_opinion(claim, confidence) if known else None,
        label=label,
        state=state,
        sentence="",
    )
    return gate.model_copy(update={"sentence": sentence(gate, evidence)})


def _missing(claim: Claim) -> tuple[Label, Literal["missing"]] | None:
    return ("missing", "missing") if claim.changes.missing else None


def _infinite(claim: Claim) -> tuple[Label, Literal["passed", "failed", "undecided"]] | None:
    """Pairs in which only one side finished enough: certain when they all agree, else nothing can be said."""
    if claim.changes.finite:
        return None
    side = one_sided(claim.changes)
    if not side:
        return "undecided", "undecided"
    better = (side < 0) == claim.lower
    return ("better", "passed") if better else ("worse", "failed")


def _finite(claim: Claim, confidence: float) -> tuple[Label, Literal["passed", "failed", "undecided"]]:
    low, high = benefit(claim, confidence)
    label: Label = "better" if low > 0 else "worse" if high < 0 else "same"
    if math.isinf(low):
        label = "undecided"
    if claim.role == "primary":
        gain = -claim.border if claim.lower else claim.border
        if low >= gain:
            return label, "passed"
        return label, "failed" if high < 0 or is_small(claim, low, high) else "undecided"
    allowed = claim.border if claim.lower else -claim.border  # greatest harm, as a log ratio
    if -low <= allowed:
        return label, "passed"
    return label, "failed" if -high > allowed else "undecided"


def is_small(claim: Claim, low: float, high: float) -> bool:
    """Whether the whole interval of benefit lies within plus or minus the margin."""
    gain, loss = (-math.log1p(-claim.margin), math.log1p(claim.margin))
    if not claim.lower:
        gain, loss = loss, gain
    return low > -loss and high < gain


def benefit(claim: Claim, confidence: float) -> tuple[float, float]:
    """Bounds of the benefit in log ratio: the interval turned so that positive is better."""
    low, high = claim.changes.bounds(confidence)
    return (-high, -low) if claim.lower else (low, high)


def within_error(pairs: Sequence[Pair], metric: str) -> float | None:
    """Standard error of the mean log ratio, from the block bootstrap inside each run; None where one has none."""
    found = [run.within_run_errors.get(metric) for pair in pairs for run in pair]
    errors = [error for error in found if error is not None]
    if not errors or len(errors) < len(found):
        return None
    return math.sqrt(sum(error * error for error in errors)) / len(pairs)


def _opinion(claim: Claim, confidence: float) -> Interval | None:
    if claim.opinion is None or claim.changes.exact:
        return None
    half = NormalDist().inv_cdf(0.5 + confidence / 2) * claim.opinion
    low, high = relative(claim.changes.mean - half), relative(claim.changes.mean + half)
    return Interval(low=bounded(low), high=bounded(high), confidence=confidence)


def _interval(evidence: Changes, confidence: float) -> Interval | None:
    if evidence.missing or not evidence.finite or evidence.exact or len(evidence.logs) < 2:
        return None
    low, high = evidence.bounds(confidence)
    return Interval(low=bounded(relative(low)), high=bounded(relative(high)), confidence=confidence)


def gate_words(gate: Gate) -> str:
    """What the gate asks: ``at least 10 % better`` or ``at most 5 % worse``."""
    if gate.metric in OF_OFFERED:
        less = gate.margin if gate.role == "primary" else -gate.margin
        return f"{gate.role if gate.role == 'guard' else 'gate'}: " + (
            f"at least {less * 100:.3g} % of all offered requests fewer"
            if less > 0
            else f"at most {-less * 100:.3g} % of all offered requests more"
        )
    if gate.role == "primary":
        return f"gate: at least {gate.margin * 100:.3g} % better"
    allowed = gate.margin if gate.better == "lower" else -gate.margin
    if allowed < 0:
        return f"guard: at least {-allowed * 100:.3g} % better"
    return f"guard: at most {allowed * 100:.3g} % worse"


def sentence(gate: Gate, evidence: Changes) -> str:
    """The gate in one sentence, with its figures."""
    if gate.state == "missing":
        return f"{gate.metric}: no evidence ({evidence.missing}); {gate_words(gate)}"
    if not evidence.finite:
        return (
            f"{gate.metric}: infinite where too many requests did not finish (baseline "
            f"{amount(gate.baseline, gate.unit)}, candidate {amount(gate.candidate, gate.unit)}); {gate_words(gate)}: "
            f"{gate.state}"
        )
    if evidence.exact:
        bracket = "exact, no interval"
    elif gate.interval is None:
        bracket = "one pair, no interval"
    else:
        bracket = within(gate.interval)
    return (
        f"{gate.metric} {amount(gate.baseline, gate.unit)} -> {amount(gate.candidate, gate.unit)}, "
        f"{percent(gate.change)} {bracket}: {label_words(gate)}; {gate_words(gate)}: {gate.state}"
    )


def label_words(gate: Gate) -> str:
    """The label in words; ``same`` says only that no difference is shown when the interval is wide."""
    if gate.label != "same":
        return gate.label
    wide = gate.interval is not None and max(-gate.interval.low, gate.interval.high) > max(abs(gate.margin), 0.05)
    return "no difference shown" if wide else "same"
