"""The next experiment worth running, as a filled-in form: more pairs, a knob turned, or a higher load."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.parse import parse
from scheduler_core.spec.policy import SECTIONS
from scheduler_core.types.errors import InputError
from scheduler_core.verdict.decision import Ruling, further_look
from scheduler_core.verdict.gates import LEAST_PAIRS, Claim
from scheduler_core.verdict.layers import Difference
from scheduler_core.verdict.pairs import pairs_needed
from scheduler_core.verdict.question import Question
from scheduler_core.verdict.schema import SUBMIT, Decision, Finding, Gate, NextStep
from scheduler_core.verdict.single_instance import single_arm_first

MOST_PAIRS = 100
LOAD_FACTOR = 1.25


@dataclass(frozen=True, slots=True)
class Knob:
    """A parameter and the way to turn it: a number by ``factor``, a choice to ``to``; ``why`` it should help.

    ``unset`` is what a choice that is not set amounts to.
    """

    parameter: str
    factor: float
    why: str
    to: str | None = None
    unset: str | None = None

    def turn(self, value: Any) -> Any:
        """The new value; None where there is nothing to turn."""
        if self.to is not None:
            return self.to if isinstance(value, str) and value != self.to else None
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            return None
        new = max(1, round(value * self.factor)) if isinstance(value, int) else value * self.factor
        return None if new == value else new

    def words(self, arm: str, value: Any, new: Any) -> str:
        """What is done, with its direction."""
        if self.to is not None:
            return f"set {self.parameter} of {arm} from {value} to {new}"
        return f"{'lower' if new < value else 'raise'} {self.parameter} of {arm} from {value:g} to {new:g}"


# Broken or undecided metric -> knobs to try, in order; only parameters that the candidate's policy has are turned.
KNOBS: dict[str, tuple[Knob, ...]] = {
    "tpot": (
        Knob("execution.draft_tokens", 0.5, "fewer tokens are checked in vain"),
        Knob("batch.token_budget", 0.5, "decode shares its steps with prefill: smaller steps shorten every gap"),
        Knob("batch.size", 0.5, "fewer requests share each decode step"),
    ),
    "itl": (Knob("batch.token_budget", 0.5, "prefill ahead of decode makes the long gaps"),),
    "longest_gap": (
        Knob("batch.token_budget", 0.5, "prefill ahead of decode makes the longest gaps"),
        Knob("batch.size", 0.75, "fewer residents, fewer preemptions"),
    ),
    "stall_share": (
        Knob("batch.size", 0.75, "fewer residents, fewer preemptions and shorter stalls"),
        Knob("batch.token_budget", 0.5, "long prefill steps hold up everybody's next token"),
    ),
    "ttft": (
        Knob("batch.token_budget", 2.0, "prompts are cut into fewer steps"),
        Knob("batch.size", 2.0, "requests are admitted sooner"),
        Knob("batch.max_wait_ms", 0.5, "a batch starts earlier"),
    ),
    "queue_wait": (Knob("batch.size", 2.0, "requests are admitted sooner"),),
    "goodput": (Knob("batch.size", 2.0, "more requests share a step"),),
    "throughput": (
        Knob("batch.token_budget", 2.0, "larger steps use the device better"),
        Knob("batch.size", 2.0, "more requests share a step"),
    ),
    "rejection": (
        Knob("admission.reject_queued_tokens", 2.0, "newcomers are refused later"),
        Knob("admission.reject_wait_ms", 2.0, "newcomers are refused later"),
        Knob("batch.queue_limit", 2.0, "more may wait"),
    ),
    "timeout": (Knob("batch.size", 2.0, "requests are admitted before their time is over"),),
    "degraded": (Knob("admission.degrade_wait_ms", 2.0, "newcomers are degraded later"),),
    "peak": (Knob("cache.blocks", 0.75, "a smaller pool bounds memory"),),
}


def next_steps(
    question: Question,
    ruling: Ruling,
    candidate: str,
    policy: Mapping[str, Any],
    found: Sequence[Claim],
    gates: Sequence[Gate],
) -> list[NextStep]:
    """What to run next after ``ruling``, most useful first; ``policy`` is the candidate's, resolved."""
    if ruling.decision is Decision.ACCEPT:
        return [more_load(question, "find the load at which each arm breaks its objectives")]
    single = single_arm_first(question.spec, ruling)
    if single is not None:
        return [single]
    elsewhere = [more_load(question, "look for a load at which the arms differ")]
    if ruling.decision is Decision.REJECT:
        no_gain = gates[0].state == "failed" and gates[0].label != "worse"
        return elsewhere if no_gain else _turn(question, ruling, candidate, policy, gates) or elsewhere
    pairs = _next_look(question, ruling, found, gates) if question.goal.looks else _more_pairs(question, found, gates)
    return (
        [*pairs, *_turn(question, ruling, candidate, policy, gates)]
        if pairs
        else _turn(question, ruling, candidate, policy, gates)
    )


def one_layer_at_a_time(question: Question, change: Difference, candidate: str) -> NextStep | None:
    """Arms that change one layer each, when the candidate changed several, so that each can be credited."""
    if change.single or change.none or len(change.sections) < 2 or change.preset is not None:
        return None
    form = experiment_form(question)
    if form is None:
        return None
    base = form["arms"][question.baseline]
    arms = {question.baseline: base}
    for section in change.sections:
        arm = copy.deepcopy(base)
        arm[section] = copy.deepcopy(form["arms"][candidate][section])
        arms[f"{candidate} {section} only"] = arm
    form["arms"] = arms
    return NextStep(
        title="one layer at a time",
        because=f"{change.layer} changed together; a layer is credited only by arms that change it alone",
        experiment=form,
        command=SUBMIT,
    )


def with_findings(steps: Sequence[NextStep], findings: Sequence[Finding]) -> list[NextStep]:
    """``steps``, then what each finding would try, with its rule; equal experiments once."""
    found = list(steps)
    for finding in findings:
        step = finding.next_step
        if all(step.title != known.title for known in found):
            found.append(step.model_copy(update={"because": f"{finding.rule}, {finding.symptom}: {step.because}"}))
    return found


def repeats_needed(found: Sequence[Claim], gates: Sequence[Gate]) -> int | None:
    """Most pairs that any undecided gate needs; None when one of them would need more than `MOST_PAIRS`."""
    needed = LEAST_PAIRS
    for claim, gate in zip(found, gates, strict=False):
        blind = claim.changes.missing or not claim.changes.finite or len(claim.changes.logs) < 2
        if gate.state != "undecided" or blind:
            continue
        distance = abs(claim.changes.mean - claim.border)
        confidence = gate.interval.confidence if gate.interval is not None else 0.95
        count = pairs_needed(claim.changes.spread, distance, confidence, MOST_PAIRS)
        if count is None:
            return None
        needed = max(needed, count)
    return needed


def _more_pairs(question: Question, found: Sequence[Claim], gates: Sequence[Gate]) -> list[NextStep]:
    needed = repeats_needed(found, gates)
    have = max((len(claim.changes.logs) for claim in found), default=0)
    if needed is None or have >= MOST_PAIRS:
        return []
    undecided = [gate.metric for gate in gates if gate.state == "undecided"]
    count = max(needed, have + 1) if undecided and have >= LEAST_PAIRS else needed
    if count <= have:
        return []
    form = experiment_form(question)
    if form is not None:
        form["repeats"] = count
    what = f"{', '.join(undecided)} would be decided" if undecided else "a decision becomes possible"
    return [
        NextStep(
            title=f"{count} pairs instead of {have}",
            because=f"at the spread seen, {what} by about {count} pairs of runs"
            if have > 1
            else f"one pair shows no spread; from {LEAST_PAIRS} pairs on a decision is possible",
            experiment=form,
            command=SUBMIT if form else "",
        )
    ]


def _next_look(question: Question, ruling: Ruling, found: Sequence[Claim], gates: Sequence[Gate]) -> list[NextStep]:
    """The next declared look, while more pairs can still change the answer."""
    have = max((len(claim.changes.logs) for claim in found), default=0)
    following = further_look(question.goal.looks, have, ruling, gates)
    undecided = [gate.metric for gate in gates if gate.state == "undecided"]
    if following is None:
        return []
    form = experiment_form(question)
    if form is not None:
        form["repeats"] = following
    return [
        NextStep(
            title=f"the next declared look, at {following} pairs",
            because=f"{', '.join(undecided) or 'no gate'} is undecided after {have} pairs",
            experiment=form,
            command=SUBMIT if form else "",
        )
    ]


def _turn(
    question: Question, ruling: Ruling, candidate: str, policy: Mapping[str, Any], gates: Sequence[Gate]
) -> list[NextStep]:
    """Turn the first knob that answers a metric the ruling rests on."""
    by_name = {gate.metric: gate for gate in gates}
    for metric in ruling.deciding:
        gate = by_name.get(metric)
        evidence = gate.sentence if gate is not None else ruling.reason
        for knob in _knobs(metric.rpartition(": ")[2]):
            step = turned(question, candidate, policy, knob, evidence)
            if step is not None:
                return [step]
    return []


def turned(question: Question, arm: str, policy: Mapping[str, Any], knob: Knob, evidence: str) -> NextStep | None:
    """The experiment with one parameter of ``arm`` turned; None when its resolved ``policy`` cannot take it."""
    section, name = knob.parameter.split(".")
    value = (policy.get(section) or {}).get(name)
    value = knob.unset if value is None else value
    new, form = knob.turn(value), experiment_form(question)
    if new is None or form is None:
        return None
    form["arms"][arm][section][name] = new
    try:
        parse(ExperimentSpec, form)
    except InputError:
        return None  # a step that cannot be run is no step
    return NextStep(
        title=knob.words(arm, value, new),
        because=f"{knob.why}; evidence: {evidence}",
        experiment=form,
        command=SUBMIT,
    )


def _knobs(metric: str) -> tuple[Knob, ...]:
    return next((knobs for stem, knobs in KNOBS.items() if metric.startswith(stem)), ())


def more_load(question: Question, because: str) -> NextStep:
    """The same arms at a higher load."""
    form = experiment_form(question)
    changed = form is not None and _scale_load(form["workload"], LOAD_FACTOR)
    return NextStep(
        title=f"the same arms at {LOAD_FACTOR:g} times the load" if changed else "the same arms on other traffic",
        because=because,
        experiment=form,
        command=SUBMIT if form else "",
    )


def _scale_load(workload: dict[str, Any], factor: float) -> bool:
    """Multiply the rate (or the concurrency) of a workload form; False when it has none that can be scaled."""
    holders = [workload, workload.get("trace"), *(workload.get("arrivals") or {}).values()]
    scaled = False
    for holder in holders:
        if not isinstance(holder, dict):
            continue
        for key in ("rate_rps", "from_rps", "to_rps"):
            if isinstance(holder.get(key), int | float):
                holder[key] = round(holder[key] * factor, 6)
                scaled = True
        if isinstance(holder.get("concurrency"), int):
            holder["concurrency"] = max(holder["concurrency"] + 1, round(holder["concurrency"] * factor))
            scaled = True
    return scaled


def experiment_form(question: Question) -> dict[str, Any] | None:
    """The experiment as a form to fill in, only what was written; None for runs made elsewhere."""
    if question.spec is None:
        return None
    form: dict[str, Any] = question.spec.model_dump(mode="json", exclude_none=True)
    for arm in form["arms"].values():
        for section in SECTIONS:
            arm.setdefault(section, {})
    return form
