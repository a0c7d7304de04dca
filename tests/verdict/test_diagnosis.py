"""Each diagnosis rule fires on its own symptom, prints its thresholds, and stays silent on a healthy run."""

import re
from typing import Any, get_args

import pytest

from scheduler_core.evidence.schema import RunSummary, TierSummary
from scheduler_core.policies.resolving import check_playable
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.parse import parse
from scheduler_core.spec.profiles import choose_profile
from scheduler_core.spec.thresholds import THRESHOLDS, ThresholdName
from scheduler_core.types.errors import InputError
from scheduler_core.verdict.diagnosis import RULES, diagnose
from scheduler_core.verdict.question import Question
from scheduler_core.verdict.schema import Finding
from tests.verdict.arms import experiment, figure, summary

HEALTHY: dict[str, float | None] = {
    "kv_peak_share": 0.6, "preemptions": 0, "decode_jitter_ms": 8, "itl_p50_ms": 10, "pool_utilisation": 0.7,
    "throughput_tokens_per_s": 500, "running_max": 8, "stalled_mean_ms": 1, "e2e_p99_ms": 2000, "ttft_p95_ms": 100,
    "tpot_p95_ms": 10,
}  # fmt: skip


def tier(ttft: int, tpot: int) -> TierSummary:
    return TierSummary(
        offered=100, finished=100, met=min(ttft, tpot), attainment_share=0.5,
        by_objective={"ttft_ms": ttft, "tpot_ms": tpot},
    )  # fmt: skip


def find(changed: dict[str, float | None], base: dict[str, float | None] | None = None, **fields: Any) -> list[Finding]:
    """Findings about a candidate that is healthy but for ``changed``."""
    old = summary("baseline", 0, {**HEALTHY, **(base or {})})
    new = summary("candidate", 0, {**HEALTHY, **changed}, **fields)
    for run, figures in ((old, base or {}), (new, changed)):
        run.metrics.update({name: figure(name, value) for name, value in figures.items()})
    return diagnose(Question.of(experiment()), "candidate", [(old, new)])


def test_healthy_run_triggers_nothing() -> None:
    assert find({}) == []


OVERLAPPED: dict[str, float | None] = {"overlap_ratio": 0.4, "e2e_mean_ms": 1000}
EXPOSED: dict[str, float | None] = {"exposed_comm_ms": 50, "e2e_mean_ms": 1000}
TRIGGERS: dict[str, tuple[dict[str, float | None], dict[str, float | None], dict[str, Any]]] = {
    "G1": ({"decode_jitter_ms": 60}, {}, {"longest_gap_causes": {"prefill_ahead": 50, "decode": 10}}),
    "G2": ({"tpot_p95_ms": 14}, {}, {}),
    "G3": ({}, {}, {"tiers": {"chat": tier(60, 99), "batch": tier(99, 60)}}),
    "G4": ({"handoff_ms": 20, "throughput_tokens_per_s": 600, "e2e_p99_ms": 2500}, {}, {}),
    "G5": ({"pool_utilisation": 0.3, "queue_wait_mean_ms": 400}, {}, {}),
    "G6": ({"exposed_comm_ms": 300}, {}, {}),
    "G7": ({"expert_load_imbalance": 2.5}, {}, {}),
    "G8": ({}, {}, {"reasons": {"rejected: submit: never_fits_pool": 3}}),
    "G9": ({"kv_peak_share": 0.99, "preemptions": 20}, {}, {}),
    "G10": ({"handoff_ms": 80}, {}, {}),
    "R12": ({"overlap_ratio": 0.8, "e2e_mean_ms": 1005}, OVERLAPPED, {}),
    "R13": ({"running_max": 16, "stalled_mean_ms": 40}, {}, {}),
    "R14": ({"exposed_comm_ms": 50.5, "e2e_mean_ms": 800}, EXPOSED, {}),
}


@pytest.mark.parametrize("rule", [rule.id for rule in RULES])
def test_each_symptom_triggers_exactly_its_rule(rule: str) -> None:
    changed, base, fields = TRIGGERS[rule]
    found = find(changed, base, **fields)
    assert [finding.rule for finding in found] == [rule]
    assert found[0].evidence and found[0].thresholds
    assert found[0].next_step.experiment is not None
    parse(ExperimentSpec, found[0].next_step.experiment)


@pytest.mark.parametrize("rule", [rule for rule in TRIGGERS if rule not in ("G3", "G9", "G8")])
def test_no_finding_says_more_load_where_a_knob_answers_it(rule: str) -> None:
    """The title names a knob with its direction, the reason cites the figures, and the form can be played."""
    changed, base, fields = TRIGGERS[rule]
    (found,) = find(changed, base, **fields)
    assert "times the load" not in found.next_step.title
    assert re.search(r"lower|raise|set|half way back", found.next_step.title)
    assert "evidence: " in found.next_step.because and found.evidence[0] in found.next_step.because


SPREAD = {"modelled": {"profile": "mixtral-8x7b@h100", "parallel": {"tensor": 8, "expert": 8, "expert_skew": 0.8}}}
PIPELINED = {"policy": "vllm_v1", "batch": {"token_budget": 2048}, "execution": {"overlap": "pipelined"}}
BESIDE = {**PIPELINED, "execution": {"overlap": "two_stream"}}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "collectives": ("G6", {"policy": "vllm_v1"}, {}, "set execution.dual_batch of candidate from never to sooner"),
    "collectives beside computing": (
        "G6", {"policy": "vllm_v1", "execution": {"dual_batch": "always"}}, {"execution": {"dual_batch": "sooner"}},
        "lower target.modelled.parallel.tensor from 8 to 4"),
    "hot expert": ("G7", {"policy": "vllm_v1", "batch": {"token_budget": 512}}, {},
                   "lower batch.token_budget of candidate from 512 to 256"),
    "hot expert, any budget": ("G7", {"policy": "vllm_v1"}, {}, "lower target.modelled.parallel.expert from 8 to 4"),
    "overlap": ("R12", BESIDE, {}, "lower batch.token_budget of both arms from 2048 to 1024"),
    "overlap and more": (
        "R12", {**BESIDE, "batch": {"token_budget": 512}}, {},
        "beside candidate, the same with execution.overlap back to pipelined"),
    "unexplained": ("R14", {"policy": "vllm_v1", "batch": {"token_budget": 512}}, {},
                    "beside candidate, raise batch.token_budget from 512 half way back to 1280"),
    "unexplained, two layers": (
        "R14", {"policy": "vllm_v1", "batch": {"token_budget": 512}, "cache": {"prefix": "none"}}, {},
        "one layer at a time"),
    "unexplained choice": (
        "R14", {"policy": "vllm_v1", "batch": {"token_budget": 2048}, "order": {"by": "priority"}}, {},
        "a second arm with order.by as in baseline"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_a_finding_tries_is_a_form_that_can_be_played(case: str) -> None:
    """G6: half the devices or the halves of a step apart; G7: less to wait for; R12: the overlap alone, or where it
    weighs more; R14: layer by layer, half the change, or the baseline against itself."""
    rule, policy, given, title = CASES[case]
    changed, base, fields = TRIGGERS[rule]
    if case.startswith("collectives"):
        changed, base = {"step_path_ms": 1000, "exposed_collective_ms": 400}, {}
    before = PIPELINED if rule == "R12" else {"policy": "vllm_v1", "batch": {"token_budget": 2048}}
    asked = experiment(target=SPREAD, arms={"baseline": before, "candidate": {**policy, **given}})
    old = summary("baseline", 0, {**HEALTHY, **base}, policy=before)
    new = summary("candidate", 0, {**HEALTHY, **changed}, policy={**policy, **given}, **fields)
    for run, figures in ((old, base), (new, changed)):
        run.metrics.update({name: figure(name, value) for name, value in figures.items()})
    (found,) = diagnose(Question.of(asked), "candidate", [(old, new)])
    assert (found.rule, found.next_step.title) == (rule, title)
    form = parse(ExperimentSpec, found.next_step.experiment)
    assert form != asked
    modelled = form.target.modelled
    assert modelled is not None
    profile = choose_profile(modelled.profile, [], where="profile", parallel=modelled.parallel)
    for arm in form.arms.values():
        check_playable(arm, form.target, profile)


@pytest.mark.parametrize("rule", ["G4", "G10"])
def test_a_handoff_on_the_path_is_tried_another_way(rule: str) -> None:
    """Transfers become the sooner of transfer and recompute; where they are already, a budget that is set is halved."""
    changed, base, _ = TRIGGERS[rule]
    pools = {"layout": "split", "prefill": ["p"], "handoff": "transfer"}
    policy = {"policy": "vllm_v1", "batch": {"token_budget": 512}, "pools": pools}
    (found,) = find(changed, base, policy=policy)
    assert found.next_step.title == "set pools.handoff of candidate from transfer to cheapest"
    assert found.next_step.experiment is not None
    assert found.next_step.experiment["arms"]["candidate"]["pools"]["handoff"] == "cheapest"
    cheapest = {**policy, "pools": {**pools, "handoff": "cheapest", "handoff_budget_ms": 40.0}}
    (found,) = find(changed, base, policy=cheapest)
    assert found.next_step.title == "lower pools.handoff_budget_ms of candidate from 40 to 20"


def test_collectives_and_experts_matter_where_steps_wait_for_them() -> None:
    """A few tokens never spread evenly over many experts: an imbalance nobody waits for is no symptom."""
    steps: dict[str, float | None] = {"step_path_ms": 1000, "expert_load_imbalance": 9}
    assert find({**steps, "expert_wait_ms": 10}) == []
    assert [finding.rule for finding in find({**steps, "expert_wait_ms": 400})] == ["G7"]
    assert [finding.rule for finding in find({"step_path_ms": 1000, "exposed_collective_ms": 400})] == ["G6"]


def test_drafts_that_shorten_nothing_are_no_gain() -> None:
    """R12. Where elapsed time falls, or the baseline drafts as much, nothing is said."""
    drafts: dict[str, float | None] = {"drafted_tokens": 4000, "draft_waste_share": 0.6}
    (found,) = find({**drafts, "e2e_mean_ms": 1005}, {"e2e_mean_ms": 1000})
    assert found.rule == "R12"
    assert found.symptom == "more tokens drafted and checked, elapsed time no shorter: no gain"
    assert "draft_waste_share 60 %" in found.evidence
    assert find({**drafts, "e2e_mean_ms": 600}, {"e2e_mean_ms": 1000}) == []
    assert find({**drafts, "e2e_mean_ms": 1005}, {**drafts, "e2e_mean_ms": 1000}) == []


def test_thresholds_can_be_set() -> None:
    runs: list[RunSummary] = [
        summary(arm, 0, {**HEALTHY, "kv_peak_share": 0.9, "preemptions": 20}) for arm in ("baseline", "candidate")
    ]
    assert diagnose(Question.of(experiment()), "candidate", [(runs[0], runs[1])]) == []
    found = diagnose(Question.of(experiment()), "candidate", [(runs[0], runs[1])], {"kv_peak_share": 0.8})
    assert [finding.rule for finding in found] == ["G9"]
    assert "kv_peak_share 0.8" in found[0].thresholds


def test_a_goal_sets_thresholds_and_the_finding_prints_them() -> None:
    asked = experiment(goal={"thresholds": {"handoff_budget_ms": 10}})
    old, new = (summary(arm, 0, {**HEALTHY, "handoff_ms": 20}) for arm in ("baseline", "candidate"))
    (found,) = diagnose(Question.of(asked), "candidate", [(old, new)])
    assert (found.rule, found.thresholds) == ("G10", ["handoff_budget_ms 10"])
    assert diagnose(Question.of(experiment()), "candidate", [(old, new)]) == []
    with pytest.raises(InputError, match="thresholds"):
        experiment(goal={"thresholds": {"nothing_such": 1}})


def test_every_threshold_has_a_default() -> None:
    assert set(get_args(ThresholdName)) == THRESHOLDS.keys()


def test_utilisation_alone_never_decides() -> None:
    """No goal can name utilisation, so no gate and no decision rests on it (C7, R16)."""
    from scheduler_core.types.errors import InputError

    with pytest.raises(InputError, match="primary"):
        experiment(goal={"primary": "pool_utilisation"})
