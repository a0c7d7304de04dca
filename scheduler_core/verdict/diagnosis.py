"""From symptoms to a first judgement and the next experiment: rules G1 to G10, R12 to R14.

A rule speaks only when its figures are there and pass its printed thresholds; a healthy run triggers none. Memory (G9)
is looked at before the shares of stages.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from scheduler_core.spec.thresholds import ThresholdName
from scheduler_core.verdict.next_steps import Knob, more_load, turned
from scheduler_core.verdict.pairs import Pair
from scheduler_core.verdict.question import Question
from scheduler_core.verdict.remedies import (
    Asked,
    Remedy,
    fewer_devices,
    fewer_expert_places,
    tell_the_cause,
    without_overlap,
)
from scheduler_core.verdict.schema import Finding, NextStep
from scheduler_core.verdict.symptoms import View

Problem = Literal["compute", "queueing", "handoff", "allocation", "unknown"]


@dataclass(frozen=True, slots=True)
class Rule:
    """``shows`` answers with the symptom in words, or with nothing.

    For the next step ``knobs`` are tried in order, then ``remedies``.
    """

    id: str
    problem: Problem
    judgement: str
    shows: Callable[[View], str | None]
    knobs: tuple[Knob, ...] = ()
    remedies: tuple[Remedy, ...] = ()


def diagnose(
    question: Question, arm: str, pairs: Sequence[Pair], thresholds: Mapping[ThresholdName, float] | None = None
) -> list[Finding]:
    """Findings about ``arm`` (the second of each pair), beside the baseline (the first).

    ``thresholds`` go before those of the question's goal, and these before the defaults.
    """
    chosen = {**question.goal.thresholds, **(thresholds or {})}
    view = View([pair[1] for pair in pairs], [pair[0] for pair in pairs], chosen)
    found = []
    for rule in RULES:
        fresh = view.fresh()
        symptom = rule.shows(fresh)
        if symptom is not None:
            found.append(_finding(question, arm, rule, fresh, symptom))
    return found


def _finding(question: Question, arm: str, rule: Rule, view: View, symptom: str) -> Finding:
    evidence = list(view.cited.values())
    asked = Asked(question, arm, view.runs[0].policy, view.baseline[0].policy, "; ".join(evidence))
    steps = chain(
        (turned(question, arm, asked.policy, knob, asked.evidence) for knob in rule.knobs),
        (remedy(asked) for remedy in rule.remedies),
    )
    step: NextStep | None = next((step for step in steps if step is not None), None)
    return Finding(
        rule=rule.id,
        problem=rule.problem,
        symptom=symptom,
        judgement=rule.judgement,
        evidence=evidence,
        thresholds=[f"{name} {value:g}" for name, value in view.used.items()],
        next_step=step or more_load(question, f"{rule.judgement}: see whether it grows with load"),
    )


def _memory_near_budget(view: View) -> str | None:
    peak, preempted = view.value("kv_peak_share"), view.value("preemptions")
    measured = sum(run.measured for run in view.runs) / max(len(view.runs), 1)
    if peak is None or preempted is None or peak < view.limit("kv_peak_share"):
        return None
    if preempted <= view.limit("preempted_share") * measured:
        return None
    return "KV memory is at its budget and requests are preempted"


def _does_not_fit(view: View) -> str | None:
    count = view.reasons("never_fits", "over_model_length", "capacity", "out of memory")
    return f"{count} requests do not fit" if count > view.limit("misfits") else None


def _decode_jitter(view: View) -> str | None:
    jitter, gap = view.value("decode_jitter_ms"), view.value("itl_p50_ms")
    if jitter is None or gap is None or jitter <= view.limit("jitter_over_gap") * gap:
        return None
    if view.cause_share("prefill_ahead") <= view.limit("prefill_cause_share"):
        return None
    return "token gaps jump when prompts are computed"


def _decode_squeezed(view: View) -> str | None:
    """By objectives where tiers have them, or by change: first tokens are in time everywhere, later ones are not."""
    first, later = view.attained("ttft_ms"), view.attained("tpot_ms")
    tiers = [name for name, share in later.items() if share < view.limit("missed_share")]
    if tiers and first and min(first.values()) >= view.limit("kept_share"):
        return f"first tokens are in time but later ones are not (tier {', '.join(sorted(tiers))})"
    ttft, tpot = view.change("ttft_p95_ms"), view.change("tpot_p95_ms")
    if ttft is None or tpot is None:
        return None
    if ttft <= view.limit("same_change") and tpot > view.limit("worse_change"):
        return "TTFT held or fell while TPOT grew worse"
    return None


def _two_kinds(view: View) -> str | None:
    first, later = view.attained("ttft_ms"), view.attained("tpot_ms")
    missed = view.limit("missed_share")
    late_start = sorted(name for name, share in first.items() if share < missed)
    late_flow = sorted(name for name, share in later.items() if share < missed)
    if not late_start or not late_flow or late_start == late_flow == [*first]:
        return None
    return f"tier {', '.join(late_start)} misses TTFT while tier {', '.join(late_flow)} misses TPOT"


def _handoff_tail(view: View) -> str | None:
    if view.value("handoff_ms") is None:
        return None
    rate, tail = view.change("throughput_tokens_per_s"), view.change("e2e_p99_ms")
    if rate is None or tail is None or rate <= view.limit("same_change") or tail <= view.limit("worse_change"):
        return None
    return "separated pools give more throughput and a worse p99"


def _idle_and_queueing(view: View) -> str | None:
    used, queue, elapsed = (view.value(name) for name in ("pool_utilisation", "queue_wait_mean_ms", "e2e_mean_ms"))
    if used is None or queue is None or elapsed is None or used >= view.limit("low_utilisation"):
        return None
    if queue < max(view.limit("queue_over_e2e") * elapsed, view.limit("least_queue_ms")):
        return None
    return "requests queue while the device is mostly idle"


def _exposed_collectives(view: View) -> str | None:
    told, steps = view.value("exposed_collective_ms"), view.value("step_path_ms")
    if told is None or not steps or told <= view.limit("exposed_over_e2e") * steps:
        return None
    return "collectives are on the critical path of each step"


def _exposed(view: View) -> str | None:
    if _exposed_collectives(view.fresh()) is not None:
        return None  # said already, of the devices of one instance
    exposed, elapsed = view.value("exposed_comm_ms"), view.value("e2e_mean_ms")
    if exposed is None or elapsed is None or exposed <= view.limit("exposed_over_e2e") * elapsed:
        return None
    return "communication is on the critical path"


def _hot_expert(view: View) -> str | None:
    imbalance = view.value("expert_load_imbalance")
    waited, steps = view.value("expert_wait_ms"), view.value("step_path_ms")
    if waited is not None and steps and waited <= view.limit("exposed_over_e2e") * steps:
        return None  # a few tokens never spread evenly over many experts; it matters where others wait for it
    return "a hot expert holds up each step" if imbalance and imbalance > view.limit("expert_imbalance") else None


def _handoff_budget(view: View) -> str | None:
    handoff, waited = view.value("handoff_ms"), view.value("network_wait_ms")
    if not handoff or handoff <= view.limit("handoff_budget_ms"):
        return None
    if waited is not None and 2 * waited > handoff:
        return "the handoff is over its budget, and most of it waits for the network: too many share the link"
    return "the handoff is over its budget"


def _overlap_without_gain(view: View) -> str | None:
    elapsed = view.change("e2e_mean_ms")
    if elapsed is None or elapsed < -view.limit("equal_change"):
        return None
    rises = [view.rise(name) for name in ("overlap_ratio", "hidden_work_share")]
    if not any(rise is not None and rise > view.limit("overlap_rise") for rise in rises):
        return None
    return "more overlap, elapsed time no shorter: no gain"


def _drafts_without_gain(view: View) -> str | None:
    elapsed, more = view.change("e2e_mean_ms"), view.rise("drafted_tokens")  # None where the baseline drafts nothing
    if elapsed is None or elapsed < -view.limit("equal_change") or (more is not None and more <= 0):
        return None
    if not view.value("drafted_tokens") or view.value("draft_waste_share") is None:
        return None
    return "more tokens drafted and checked, elapsed time no shorter: no gain"


def _crowding(view: View) -> str | None:
    more, rate = view.change("running_max"), view.change("throughput_tokens_per_s")
    if more is None or rate is None or more < view.limit("more_requests") or rate > view.limit("equal_change"):
        return None
    elapsed = view.change("e2e_mean_ms")
    if elapsed is None or elapsed < -view.limit("equal_change"):
        return None  # below saturation arrivals set the rate; requests that are sooner done are no contention
    waits = [view.change(name) for name in ("stalled_mean_ms", "tpot_p95_ms", "preemptions")]
    if not any(change is not None and change > view.limit("worse_change") for change in waits):
        return None
    return "more requests at once bring no more tokens, only waiting"


def _unexplained(view: View) -> str | None:
    exposed, elapsed = view.change("exposed_comm_ms"), view.change("e2e_mean_ms")
    if exposed is None or elapsed is None or elapsed > -view.limit("same_change"):
        return None
    return "gain not explained: exposed time did not change" if abs(exposed) <= view.limit("equal_change") else None


_SMALLER_STEPS = Knob("batch.token_budget", 0.5, "smaller steps let decode in between")
_ANOTHER_WAY = (
    Knob("pools.handoff", 1, "each prompt takes the sooner of transfer and recompute", to="cheapest"),
    Knob("pools.handoff_budget_ms", 0.5, "slow transfers give way to recompute, then to staying"),
)
_FEWER = Knob("batch.size", 0.75, "fewer residents need fewer blocks")

RULES: tuple[Rule, ...] = (
    Rule("G9", "allocation", "the pool is too small for this many residents", _memory_near_budget,
         (_FEWER, Knob("cache.blocks", 1.5, "more room for the same residents"))),
    Rule("G8", "allocation", "capacity: a request is larger than what there is", _does_not_fit,
         (Knob("cache.blocks", 2.0, "room for the largest request"),)),
    Rule("G1", "compute", "prefill runs ahead of decode in large steps: check chunked prefill and the step budget",
         _decode_jitter, (_SMALLER_STEPS,)),
    Rule("G2", "compute", "decode is squeezed or requests accumulate: check decode scheduling and quotas",
         _decode_squeezed, (_SMALLER_STEPS, _FEWER)),
    Rule("G3", "allocation", "one instance does not suit both kinds: evaluate chunked prefill and separated pools",
         _two_kinds, (_SMALLER_STEPS,)),
    Rule("G4", "handoff", "handoff or imbalance is on the critical path: compare transfer, recompute, same pool",
         _handoff_tail, _ANOTHER_WAY, (tell_the_cause,)),
    Rule("G5", "queueing", "granularity or batch formation holds requests back: profile steps, raise the batch",
         _idle_and_queueing,
         (Knob("batch.size", 2.0, "more requests share each step"),
          Knob("batch.max_wait_ms", 0.5, "a batch starts earlier"),
          Knob("batch.token_budget", 2.0, "larger steps use the device better"))),
    Rule("G6", "handoff", "exposed communication or imbalance between devices of an instance", _exposed_collectives,
         (Knob("execution.dual_batch", 1, "one half of a step communicates while the other computes", to="sooner",
               unset="never"),),
         (fewer_devices, tell_the_cause)),
    Rule("G6", "handoff", "exposed communication or imbalance between instances", _exposed,
         (Knob("pools.move", 1, "KV moves while later layers are computed", to="layers"), *_ANOTHER_WAY),
         (fewer_devices, tell_the_cause)),
    Rule("G7", "allocation", "all-to-all or a hot expert", _hot_expert,
         (Knob("batch.token_budget", 0.5, "in a smaller step fewer tokens wait for the hottest place"),),
         (fewer_expert_places,)),
    Rule("G10", "handoff", "recompute or stay in the same pool", _handoff_budget, _ANOTHER_WAY, (tell_the_cause,)),
    Rule("R12", "unknown", "overlap counts only when it leaves the critical path", _overlap_without_gain,
         remedies=(without_overlap,)),
    Rule("R12", "compute", "drafts count only where checking them is cheaper than what they save", _drafts_without_gain,
         (Knob("execution.draft_tokens", 0.5, "fewer tokens are checked in vain"),)),
    Rule("R13", "allocation", "parallelism that causes contention is no optimisation", _crowding, (_FEWER,),
         (tell_the_cause,)),
    Rule("R14", "unknown", "look for another difference between the arms", _unexplained,
         remedies=(tell_the_cause,)),
)  # fmt: skip
