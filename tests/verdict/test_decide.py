"""The decision table, row by row, on synthetic pairs."""

from typing import Any

import pytest

from scheduler_core.evidence.schema import NOISE, RunSummary
from scheduler_core.verdict.decide import decide
from scheduler_core.verdict.schema import Comparison
from scheduler_core.verdict.text import render
from tests.verdict.arms import arms, experiment, figure, summary, tenant

NEAR = (0.99, 1.0, 1.01, 1.0, 1.0)


def compare(runs: list[RunSummary], **changed: Any) -> Comparison:
    return decide(experiment(**changed), runs).comparisons[0]


@pytest.mark.parametrize(
    ("ratios", "decision", "code"),
    [
        pytest.param((0.70, 0.71, 0.69, 0.70, 0.70), "accept", 0, id="surely better than the margin"),
        pytest.param((0.95, 0.94, 0.96, 0.95, 0.95), "reject", 20, id="surely better than 0, surely not by 10 %"),
        pytest.param((0.80, 0.95, 0.84, 0.92, 0.87), "tune", 10, id="better than 0, not surely by 10 %"),
        pytest.param((0.6, 1.5, 0.8, 1.2, 1.0), "tune", 10, id="undecided"),
        pytest.param(NEAR, "reject", 20, id="within the margin: no gain worth having"),
        pytest.param((1.30, 1.29, 1.31, 1.30, 1.30), "reject", 20, id="surely worse"),
    ],
)
def test_primary_rows(ratios: tuple[float, ...], decision: str, code: int) -> None:
    found = compare(arms(ratios))
    assert (found.decision, found.exit_code) == (decision, code)
    assert found.comparable
    assert found.headline in render(decide(experiment(), arms(ratios)))


WIN = (0.70, 0.71, 0.69, 0.70, 0.70)


def test_guard_of_lower_priority_asks_for_tuning() -> None:
    """Goodput falls by 10 % where 2 % is allowed; throughput ranks below latency."""
    found = compare(arms(WIN, changed={"goodput_rps": 4.5}))
    assert found.decision == "tune"
    assert "goodput_rps broke" in found.headline


def test_guard_of_equal_priority_rejects() -> None:
    found = compare(arms(WIN, changed={"tpot_p95_censored_ms": 11.0}))
    assert found.decision == "reject"
    assert "at the cost of tpot_p95_ms" in found.headline
    assert found.next_steps[0].title == "lower batch.token_budget of candidate from 512 to 256"
    assert found.next_steps[0].experiment is not None
    experiment(**found.next_steps[0].experiment)  # the form is an experiment that can be run


def test_undecided_guard_asks_for_pairs() -> None:
    """TPOT is +2 % on average with a spread of 5 %: five pairs cannot clear a 5 % guard."""
    runs = arms(WIN)
    for place, ratio in zip(range(1, 10, 2), (0.95, 1.10, 1.0, 1.08, 0.97), strict=True):
        changed = {"ttft_p95_censored_ms": 70.0, "tpot_p95_censored_ms": 10 * ratio}
        runs[place] = summary("candidate", place // 2, changed)
    found = compare(runs)
    assert found.decision == "tune"
    assert found.next_steps[0].title.endswith("pairs instead of 5")


def test_four_pairs_never_accept() -> None:
    found = compare(arms(WIN[:4]))
    assert found.decision == "tune"
    assert "4 pairs of runs, at least 5 are needed" in found.headline


def test_missing_evidence_asks_for_it() -> None:
    runs = arms(WIN)
    runs = [
        run.model_copy(update={"metrics": {k: v for k, v in run.metrics.items() if k != "goodput_rps"}}) for run in runs
    ]
    found = compare(runs)
    assert found.decision == "tune"
    assert "evidence is missing for goodput_rps" in found.headline


def test_dropping_work_never_wins() -> None:
    """The candidate answers only the easy three quarters: TTFT looks 30 % better, completion falls by 25 %."""
    dropped = {"completion_share": 0.75, "ttft_p95_censored_ms": None}
    found = compare(arms(WIN, changed=dropped))
    assert found.decision == "reject"
    assert "runnability: completion falls from 100.0 % to 75.0 %" in found.headline


def test_admission_is_judged_by_goodput_and_censored_tails() -> None:
    """A queue limit explains rejections, so it is no runnability fault; but the censored tail is infinite: no win."""
    dropped = {"completion_share": 0.75, "ttft_p95_censored_ms": None, "goodput_rps": 4.0}
    runs = [
        run.model_copy(
            update={"policy": {"policy": "vllm_v1", "batch": {"queue_limit": 4 if run.arm == "candidate" else 0}}}
        )
        for run in arms(WIN, changed=dropped)
    ]
    found = compare(runs, goal={"guard": {}})
    assert found.comparable
    assert found.decision == "reject"
    assert [gate.metric for gate in found.gates] == ["ttft_p95_ms", "goodput_rps"]


def test_stalls_are_never_accepted_and_named_first() -> None:
    """Five of a hundred requests stall once for 2 s: no declared gate sees it, the watch does."""
    found = compare(arms(WIN, changed={"stall_share": 0.05, "longest_gap_max_ms": 2021.0}))
    assert found.decision == "tune"
    assert "streams stall: 5 % of requests" in found.headline
    assert "2,021 ms" in found.headline


def test_starved_class_is_named() -> None:
    runs = [
        run.model_copy(
            update={"classes": {"tenant a": tenant(70), "tenant b": tenant(900 if run.arm == "candidate" else 100)}}
        )
        for run in arms(WIN)
    ]
    found = compare(runs)
    assert found.decision == "reject"
    assert "tenant b" in found.headline


def test_candidate_that_never_completes_is_rejected() -> None:
    found = compare([summary("baseline", repeat) for repeat in range(5)])
    assert found.decision == "reject"
    assert "runnability" in found.headline


def test_baseline_that_never_completes_leaves_nothing_to_compare() -> None:
    found = compare([summary("candidate", repeat) for repeat in range(5)])
    assert (found.decision, found.comparable, found.exit_code) == (None, False, 30)


BROKEN = {"passed": False, "checks": {}, "violations": [{"rule": "budget", "where": "step 3", "message": "9 over 8"}]}


@pytest.mark.parametrize(
    ("changed", "obstacle"),
    [
        ({"plan_digest": "q"}, "arrival plans differ"),
        ({"initial_cache_blocks": 12}, "prefix cache held 0 blocks"),
        ({"lengths_digest": "m"}, "output lengths differ"),
        ({"fingerprint": {"threads": 4}}, "machines differ: threads None and 4"),
        ({"level": "cpu_kernels"}, "evidence levels differ"),
        ({"audit": BROKEN}, "failed its audit: budget: step 3: 9 over 8"),
    ],
)  # fmt: skip
def test_not_comparable(changed: dict[str, Any], obstacle: str) -> None:
    runs = [
        type(run).model_validate({**run.canonical(), **changed}) if run.arm == "candidate" else run for run in arms(WIN)
    ]
    found = compare(runs)
    assert (found.decision, found.exit_code) == (None, 30)
    assert obstacle in found.headline


def test_a_change_that_decided_nothing_has_no_verdict() -> None:
    runs = [run.model_copy(update={"decisions_digest": "same"}) for run in arms(WIN)]
    assert "took no effect" in compare(runs).headline


def test_noise_free_model_is_exact() -> None:
    exact = {"target": {"modelled": {"noise": False}}}
    runs = [run.model_copy(update=exact) for run in arms((0.8,))]
    found = compare(runs)
    assert found.decision == "accept"
    assert "exact, no interval" in found.gates[0].sentence


def test_noise_that_a_profile_does_not_have_makes_no_interval() -> None:
    """Asked for, but a public specification has none: equal repeats are exact, not five agreeing measurements."""
    runs = [run.model_copy(update={"fingerprint": {NOISE: False}}) for run in arms([0.8, 0.8])]
    found = decide(experiment(), runs).comparisons[0]
    assert "exact, no interval" in found.gates[0].sentence
    noisy = [run.model_copy(update={"fingerprint": {NOISE: True}}) for run in arms([0.8, 0.8])]
    assert "exact" not in decide(experiment(), noisy).comparisons[0].gates[0].sentence


def with_share(metric: str, baseline: float, candidate: float) -> list[RunSummary]:
    """Runs in which the candidate wins by 30 %, and a share of offered requests is as given."""
    shares = {"baseline": figure(metric, baseline), "candidate": figure(metric, candidate)}
    return [run.model_copy(update={"metrics": {**run.metrics, metric: shares[run.arm]}}) for run in arms(WIN)]


@pytest.mark.parametrize(
    ("baseline", "candidate", "decision", "words"),
    [
        (0.0, 0.01, "accept", "rejection_share 0 % -> 1 %, +1 %"),
        (0.0, 0.10, "reject", "guard: at most 2 % of all offered requests more: failed"),
        (0.30, 0.31, "accept", "+1 %"),
        (0.30, 0.0, "accept", "-30 %"),
    ],
)
def test_a_share_of_offered_requests_is_guarded_by_its_difference(
    baseline: float, candidate: float, decision: str, words: str
) -> None:
    """From nothing to 1 % is one more in a hundred and within 2; as a ratio it would be infinite."""
    goal = {"guard": {"rejection_share": "+2%"}}
    found = compare(with_share("rejection_share", baseline, candidate), goal=goal)
    gate = next(gate for gate in found.gates if gate.metric == "rejection_share")
    assert found.decision == decision
    assert words in gate.sentence
    assert gate.change == pytest.approx(candidate - baseline)


@pytest.mark.parametrize(("after", "decision"), [(0.25, "accept"), (0.35, "reject")])
def test_fewer_timeouts_may_be_the_gain(after: float, decision: str) -> None:
    """40 % -> 25 % is 15 of a hundred fewer, more than the 10 that are asked for; 40 % -> 35 % is not."""
    goal = {"primary": "timeout_share", "better_by": "10%", "guard": {}}
    found = compare(with_share("timeout_share", 0.4, after), goal=goal)
    assert found.decision == decision
    assert "gate: at least 10 % of all offered requests fewer" in found.gates[0].sentence


def test_newest_attempt_counts() -> None:
    runs = arms(WIN)
    again = summary("candidate", 0, {"ttft_p95_censored_ms": 70.0}, attempt=2, run="again")
    broken = runs[1].model_copy(update={"complete": False})
    assert compare([*runs[:1], broken, *runs[2:], again]).pairs == 5


def test_outputs_that_differ_only_after_a_reported_tie_are_equal() -> None:
    from scheduler_core.verdict.comparable import Output, unequal_outputs

    one = {1: Output([5, 6, 7]), 2: Output([1, 2, 3], [1])}
    assert unequal_outputs(one, {1: Output([5, 6, 7]), 2: Output([1, 9, 9])}) == []
    assert unequal_outputs(one, {1: Output([5, 6, 8]), 2: Output([1, 9, 9])}) == [1]


def test_what_a_finding_would_try_is_offered_once_and_can_be_run() -> None:
    """A reject for TPOT halves the step budget already, which G1 would do too; G9 adds fewer residents."""
    crowded = {"decode_jitter_ms": 60.0, "itl_p50_ms": 10.0, "kv_peak_share": 0.99, "preemptions": 20.0}
    runs = [
        run.model_copy(
            update={
                "metrics": run.metrics | {name: figure(name, value) for name, value in crowded.items()},
                "longest_gap_causes": {"prefill_ahead": 9},
                "policy": {"policy": "vllm_v1", "batch": {"token_budget": 2048 if run.arm == "baseline" else 512,
                                                          "size": 32}},
            }
        )
        for run in arms(WIN, changed={"tpot_p95_censored_ms": 11.0})
    ]  # fmt: skip
    found = compare(runs)
    assert [finding.rule for finding in found.diagnosis] == ["G9", "G1"]
    assert [step.title for step in found.next_steps] == [
        "lower batch.token_budget of candidate from 512 to 256",
        "lower batch.size of candidate from 32 to 24",
    ]
    assert found.next_steps[1].because.startswith("G9, KV memory is at its budget")
    for step in found.next_steps:
        assert step.experiment is not None
        experiment(**step.experiment)
