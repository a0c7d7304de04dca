"""Speculative decoding: what is drafted, what is accepted of it, what it costs, and that nothing else changes."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.evidence.audit.replay import Audit
from scheduler_core.policies.presets import Capacity, build_policy
from scheduler_core.policies.registry import manifests
from scheduler_core.policies.resolving import check_playable, resolve
from scheduler_core.sim.cost import StepCost
from scheduler_core.sim.drafts import Drafts
from scheduler_core.sim.executor import SimulatedExecutor
from scheduler_core.spec.parse import parse
from scheduler_core.spec.speculative import Speculative
from scheduler_core.spec.target import TargetSpec
from scheduler_core.testing import conformance
from scheduler_core.testing.builders import Played, Stepper, grants_of, play, policy_spec, profile, request
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.errors import ExecutorError, InputError
from scheduler_core.types.plan import GrantResult, StepResult
from scheduler_core.types.records import Finished, RunStarted, Step
from scheduler_core.types.shape import StepShape, shape_of_step
from tests.core import test_fastforward


def emitted(played: Played, index: int) -> list[int]:
    """Tokens that a request emitted in each of its steps."""
    found = []
    for step in played.sink.of(Step):
        accepted = {row[0]: row[2] for row in step.drafts}
        found += [row[5] + accepted.get(index, 0) for row in step.grants if row[0] == index and row[5]]
    return found


def lengths(played: Played, index: int) -> list[int]:
    """Tokens computed for a request in each of its steps."""
    return [row[3] for step in played.sink.of(Step) for row in step.grants if row[0] == index]


def alone(k: int, output: int, limit: int, **worth: Any) -> Played:
    spec = policy_spec("vllm_v1", execution__draft_tokens=k)
    return play(spec, [request(0, 10, output, output_limit=limit)], target=profile(**worth))


# --- what is accepted -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("worth", "reached"),
    [
        ({"acceptance": 0.5}, (0.5, 0.25, 0.125)),
        ({"per_position": ["80%", 0.6]}, (0.8, 0.6)),
        ({"histogram": [1, 1, 2]}, (0.75, 0.5)),
        ({"histogram": [3, 0, 0, 1]}, (0.25, 0.25, 0.25)),
    ],
)
def test_each_way_to_say_it_is_one_distribution(worth: dict[str, Any], reached: tuple[float, ...]) -> None:
    """Of four drafts of which 1, 1, 2 had 0, 1, 2 tokens accepted, 3 had at least one, and 2 had two."""
    assert parse(Speculative, worth).reached()[: len(reached)] == pytest.approx(reached)


@pytest.mark.parametrize(
    ("worth", "message"),
    [
        ({}, "exactly one of acceptance, per_position, histogram"),
        ({"acceptance": 0.5, "histogram": [1, 2]}, "got acceptance, histogram"),
        ({"per_position": [0.5, 0.6]}, "per_position: rises"),
        ({"histogram": [0, 0]}, "counts no draft"),
        ({"acceptance": 1.2}, "acceptance"),
    ],
)
def test_what_is_no_distribution_is_refused(worth: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(Speculative, worth)


@pytest.mark.parametrize(("chance", "k"), [(0.8, 4), (0.5, 2), (0.9, 8)])
def test_a_geometric_draft_is_worth_what_the_formula_says(chance: float, k: int) -> None:
    """A step emits (1 - a^(k+1)) / (1 - a) tokens in the mean: 3.3616 for 0.8 and 4 (Leviathan et al. 2023, eq. 1).

    Over 20,000 drafts the standard error is below 3 / sqrt(20000) = 0.021; the bound is five of them.
    """
    drafts = Drafts(Speculative(acceptance=chance))
    mean = sum(1 + drafts.accepted(seed, 7, k, 1000) for seed in range(20_000)) / 20_000
    assert mean == pytest.approx((1 - chance ** (k + 1)) / (1 - chance), abs=0.1)


def test_measured_shares_come_out_at_each_position() -> None:
    drafts, reached = Drafts(Speculative(per_position=(0.7, 0.2, 0.15))), [0, 0, 0, 0]
    for seed in range(20_000):
        for place in range(drafts.accepted(seed, 3, 4, 1000)):
            reached[place] += 1
    assert [count / 20_000 for count in reached] == pytest.approx([0.7, 0.2, 0.15, 0], abs=0.02)


def test_what_is_accepted_is_the_request_s_own_whoever_shares_the_batch() -> None:
    """The same request alone and among seven others: the same tokens step by step."""
    requests = [request(index, 10 + index, 60) for index in range(8)]
    spec, target = policy_spec("vllm_v1", execution__draft_tokens=4), profile(acceptance=0.7)
    together = play(spec, requests, target=target)
    assert len(set(emitted(together, 5))) >= 4
    for index in (0, 5):
        assert emitted(play(spec, [requests[index]], target=target), index) == emitted(together, index)


# --- what is planned ------------------------------------------------------------------------------------------------


def test_a_perfect_draft_ends_with_the_answer() -> None:
    """Ten tokens: one by the prompt, then 4 and 4, and the last alone, since no draft can follow it."""
    played = alone(3, 10, 10, acceptance=1.0)
    assert (lengths(played, 0), emitted(played, 0)) == ([10, 4, 4, 1], [1, 4, 4, 1])


def test_nothing_is_emitted_beyond_the_end_that_nobody_knew_of() -> None:
    """The limit allows 100 tokens, so three are drafted after the ninth; the answer is over with the tenth."""
    played = alone(3, 10, 100, acceptance=1.0)
    assert (lengths(played, 0), emitted(played, 0)) == ([10, 4, 4, 4], [1, 4, 4, 1])
    assert [record.output_tokens for record in played.sink.of(Finished)] == [10]


def test_a_worthless_draft_costs_steps_no_token() -> None:
    """Of six tokens the first comes with the prompt; drafts shrink as the limit of six comes near."""
    played = alone(3, 6, 6, acceptance=0.0)
    assert (lengths(played, 0), emitted(played, 0)) == ([10, 4, 4, 3, 2, 1], [1, 1, 1, 1, 1, 1])


def test_drafts_take_no_token_that_another_request_could_have() -> None:
    """Four decode on a budget of 6: one token for each, and two of the three drafts of the first."""
    spec = policy_spec("vllm_v1", execution__draft_tokens=3, batch__token_budget=6)
    stepper = Stepper(spec, Capacity(100, 1000))
    for index in range(4):
        stepper.submit(index, 1)
    stepper.step()
    planned = stepper.plan()
    assert grants_of(planned) == {0: 3, 1: 1, 2: 1, 3: 1}
    assert [grant.drafts for grant in planned.plan.grants] == [2, 0, 0, 0]


def test_blocks_of_rejected_drafts_are_used_by_the_next_step() -> None:
    """Blocks of 4. A prompt of 3; then position 3 and drafts at 4 to 6 take a second block, which stays.

    Two drafts accepted: the next grant begins at 7 and ends at 10, in a third block.
    """
    spec = policy_spec("vllm_v1", execution__draft_tokens=3, cache__block_size=4, cache__prefix="none")
    stepper = Stepper(spec, Capacity(300, 1000))
    stepper.submit(0, 3)
    held = []
    for accepted in ({}, {0: 0}, {0: 2}, {}):
        planned = stepper.plan()
        grant = planned.plan.grants[0]
        held.append((grant.start, grant.length, grant.drafts, len(grant.new_blocks)))
        stepper.complete(planned, accepted=accepted)
    assert held == [(0, 3, 0, 1), (3, 4, 3, 1), (4, 4, 3, 0), (7, 4, 3, 1)]


def test_drafts_of_a_request_that_lost_its_blocks_in_flight_still_count() -> None:
    """V-18: the step was planned before the blocks were taken; its tokens are computed, so they are emitted."""
    stepper = Stepper(policy_spec("vllm_v1", execution__draft_tokens=3), Capacity(100, 1000))
    stepper.submit(0, 5)
    stepper.step()
    planned = stepper.plan()
    stepper.instance.preempt(0, now_ns=stepper.now)
    assert len(stepper.complete(planned, accepted={0: 2}).emitted) == 3
    grant = stepper.plan().plan.grants[0]
    assert (grant.start + grant.length, grant.drafts, grant.phase.value) == (5 + 1 + 3, 0, "recompute")


def test_an_executor_that_accepts_more_than_was_drafted_is_told_so() -> None:
    stepper = Stepper(policy_spec("vllm_v1", execution__draft_tokens=2), Capacity(100, 1000))
    stepper.submit(0, 5)
    stepper.step()
    planned = stepper.plan()
    answer = StepResult(planned.plan.id, (GrantResult(None, accepted=3),), (), 0, 1)
    with pytest.raises(ExecutorError, match="request 0: 3 of 2 drafts accepted"):
        stepper.instance.complete(answer)


def test_an_executor_that_knows_of_no_draft_refuses_to_guess() -> None:
    with pytest.raises(ExecutorError, match="nobody says what a draft is worth"):
        play(policy_spec("vllm_v1", execution__draft_tokens=2), [request(0, 5, 9)])


# --- what it costs --------------------------------------------------------------------------------------------------


def test_checking_and_drafting_take_their_time() -> None:
    """Two requests, 3 drafts each, 100 positions read; per request 0.1 ms, per position 0.01, per pair 0.001.

    Checked in the step: 1 + 8 x 0.1 + 100 x 0.01 + 200 x 0.001 = 3 ms. A decode step of both alone takes
    1 + 2 x 0.1 + 100 x 0.01 = 2.2 ms, and three passes of a quarter of it 1.65 ms.
    """
    shape = StepShape(0, 2, 100, 200, drafts=6, draft_passes=3)
    target = profile(decode_request_ms=0.1, context_token_ms=0.01, acceptance=0.5, draft_ratio=0.25)
    target = target.model_copy(update={"cost": target.cost.model_copy(update={"prefill_pair_ns": 1000})})
    assert StepCost(target).step_ns(shape, 0) == 4_650_000
    looked_up = target.model_copy(update={"speculative": Speculative(acceptance=0.5)})
    assert StepCost(looked_up).step_ns(shape, 0) == 3_000_000
    parts = StepCost(target).parts(shape, 0)
    assert parts.device_ns == parts.total_ns == 4_650_000


def test_the_tokens_of_drafts_take_their_place_in_matrix_products() -> None:
    """Products take 1 ms up to 4 tokens and 1 ms more for each further one: 2 + 6 tokens take 5 ms."""
    target = profile(base_ms=0, acceptance=0.5)
    knots = {"batch_knots": ((4, 1e6), (5, 2e6))}
    target = target.model_copy(update={"cost": target.cost.model_copy(update=knots)})
    assert StepCost(target).step_ns(StepShape(0, 2, 0, 0, drafts=6, draft_passes=3), 0) == 5_000_000


def test_a_recorded_step_has_the_shape_of_its_plan() -> None:
    """Attention of drafts at positions 11 to 13 of the first decode: 12 + 13 + 14 = 39 pairs."""
    played = alone(3, 10, 10, acceptance=1.0)
    assert shape_of_step(played.sink.of(Step)[1]) == StepShape(0, 1, 14, 39, 0, 3, 3)


# --- nothing else changes -------------------------------------------------------------------------------------------


def faults(played: Played, requests: Sequence[PlannedRequest], blocks: int) -> list[str]:
    """What the independent audit finds."""
    audit = Audit()
    audit.take(RunStarted("run", 1, "", "", {}, {}, "simulation", "modelled", len(requests), blocks, 16, 0))
    for record in played.sink.records:
        audit.take(record)
    assert audit.checks["drafts add up"] > 0
    return [f"{item.rule} at {item.where}: {item.message}" for item in audit.violations]


@pytest.mark.parametrize("name", sorted(manifests()))
def test_every_policy_conforms_with_drafts_and_emits_what_it_does_without(name: str) -> None:
    """Small pools that preempt, cancels at odd moments: laws, audit, and the same answers as without drafts."""
    drafting = policy_spec(name, execution__draft_tokens=3)
    if manifests()[name].defaults.pools.layout == "single":
        assert conformance.faults(resolve(drafting)) == []
    requests, outputs = conformance.traffic("stream", 3, 40), []
    cancels = [(3 * index, 40_000_000 + 9_000_000 * index) for index in range(10)]
    capacity = Capacity(14, 400)
    played = play(drafting, requests, capacity=capacity, target=conformance.TARGET, cancels=cancels, law_interval=20)
    assert faults(played, requests, 14) == []
    for spec in (drafting, policy_spec(name)):
        played = play(spec, requests, capacity=capacity, target=conformance.TARGET, law_interval=20)
        ends = played.sink.of(Finished)
        outputs.append(sorted((end.request, end.outcome, end.output_tokens) for end in ends))
    assert outputs[0] == outputs[1]


@settings(max_examples=60)
@given(
    k=st.integers(1, 5),
    prefix=st.sampled_from(["none", "hash", "radix"]),
    preemption=st.sampled_from(["recompute", "keep"]),
    budget=st.sampled_from([8, 24]),
    rows=test_fastforward.REQUESTS,
    blocks=st.integers(16, 40),
)
def test_fast_forward_changes_nothing(
    k: int, prefix: str, preemption: str, budget: int, rows: Any, blocks: int
) -> None:
    spec = policy_spec(
        "vllm_v1",
        execution__draft_tokens=k,
        cache__prefix=prefix,
        cache__preemption=preemption,
        cache__block_size=4,
        batch__token_budget=budget,
    )
    requests, capacity = test_fastforward.build(rows, 0.1), Capacity(blocks, 60)
    expected = test_fastforward.plain(spec, requests, capacity)
    assert test_fastforward.fused(spec, requests, capacity)[:2] == expected


def test_drafts_run_beside_other_steps() -> None:
    """Two streams: a step of other requests is planned while drafts are checked; answers are the same, laws hold."""
    target, requests = conformance.TARGET, conformance.traffic("burst", 1)
    tokens = {}
    for overlap in ("none", "two_stream", "pipelined"):
        spec = policy_spec("vllm_v1", execution__draft_tokens=3, execution__overlap=overlap)
        played = played_beside(spec, requests, target)
        assert faults(played, requests, 40) == []
        tokens[overlap] = {end.request: end.output_tokens for end in played.sink.of(Finished)}
    assert tokens["none"] == tokens["two_stream"] == tokens["pipelined"]


def played_beside(spec: Any, requests: Any, target: Any) -> Played:
    from scheduler_core.drive.driver import Driver
    from scheduler_core.policies.presets import build_instance, overlap_of
    from scheduler_core.testing.builders import ListSink

    sink, instance, overlap = ListSink(), build_instance(spec, Capacity(40, 400, target)), overlap_of(spec)
    driver = Driver(
        instance=instance,
        requests=requests,
        executor=SimulatedExecutor(profile=target, overlap=overlap),
        sink=sink,
        stop=lambda: False,
        law_interval=1,
        depth=overlap.steps_in_flight,
    )
    return Played(driver.run(), sink, instance)


# --- who may draft --------------------------------------------------------------------------------------------------

WORTH = {"speculative": {"per_position": [0.8, 0.6]}}


@pytest.mark.parametrize(
    ("target", "execution", "message"),
    [
        ({"torch": {}}, {"draft_tokens": 2}, "needs a modelled target"),
        ({"modelled": {}}, {"draft_tokens": 2}, r"needs target\.modelled\.speculative"),
        ({"modelled": WORTH}, {"draft_tokens": 3}, "is 3, .* the first 2 only"),
        ({"modelled": WORTH}, {"draft_tokens": 2, "overlap": "schedule_ahead"}, "schedule_ahead does not wait"),
    ],
    ids=["torch", "nobody knows", "beyond", "ahead"],
)
def test_drafts_are_refused_where_nobody_can_check_them(target: Any, execution: Any, message: str) -> None:
    policy = policy_spec("vllm_v1", **{f"execution__{name}": value for name, value in execution.items()})
    with pytest.raises(InputError, match=rf"execution\.draft_tokens.*{message}"):
        check_playable(policy, parse(TargetSpec, target), None)


def test_they_are_played_where_they_can_be_and_leave_every_digest_alone() -> None:
    spec = policy_spec("vllm_v1", execution__draft_tokens=2)
    assert check_playable(spec, parse(TargetSpec, {"modelled": WORTH}), None).execution.draft_tokens == 2
    assert build_policy(spec, Capacity(10, 100)).limits.draft_tokens == 2
    assert build_policy(policy_spec("vllm_v1"), Capacity(10, 100)).limits.draft_tokens == 0
    assert resolve(policy_spec("vllm_v1")).execution.draft_tokens is None
