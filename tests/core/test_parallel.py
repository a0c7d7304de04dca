"""Instances spread over devices: times worked out by hand, laws of the router, and known effects as scenarios."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.evidence.finalise import summarise
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.policies.presets import Capacity, build_policy, dual_batch_of
from scheduler_core.policies.resolving import check_playable
from scheduler_core.sim.cost import StepCost
from scheduler_core.sim.experts import ExpertRouter
from scheduler_core.sim.fastforward import FastForward
from scheduler_core.sim.parallel import Devices, DeviceTime
from scheduler_core.sim.ranks import Ranks
from scheduler_core.sim.rows import RequestRow
from scheduler_core.spec.parallel import ExpertTime, Parallel, ParallelTime
from scheduler_core.spec.parse import parse
from scheduler_core.spec.profiles import choose_profile
from scheduler_core.spec.roofline import roofline_profile
from scheduler_core.spec.target import ModelledTarget, Profile, TargetSpec
from scheduler_core.testing.builders import Played, play, policy_spec, profile, request
from scheduler_core.types.errors import CallerError, InputError
from scheduler_core.types.overlap import DualBatch
from scheduler_core.types.plan import Grant, Phase, StepPlan
from scheduler_core.types.records import Finished, RunStarted, Step
from scheduler_core.types.shape import StepShape

MS = 1_000_000
NO_EXPERTS: dict[str, Any] = {
    "tensor": 1, "pipeline": 1, "data": 1, "expert": 1, "micro_batches": None, "collectives": 0, "collective_ns": 0,
    "collective_token_ns": 0, "stage_ns": 0, "stage_token_ns": 0, "experts": None,
}  # fmt: skip


def experts(**changes: Any) -> ExpertTime:
    values: dict[str, Any] = {
        "count": 8, "used": 2, "groups": 4, "token_ns": 1000, "touch_ns": 0, "dispatch_ns": 0, "dispatch_token_ns": 0,
        "skew": 0.0, "capacity_factor": None, "seed": 1,
    }  # fmt: skip
    return ExpertTime(**{**values, **changes})


def target(cost: dict[str, float] | None = None, **parallel: Any) -> Profile:
    """One ms a step and 0.1 ms a decode unless said, spread over devices."""
    plain = profile(**(cost or {"base_ms": 1.0, "decode_request_ms": 0.1}))
    return plain.model_copy(update={"parallel": ParallelTime(**{**NO_EXPERTS, **parallel})})


def decodes(count: int, context: int = 0) -> StepShape:
    return StepShape(0, count, context, 0)


def taken(found: Profile, shape: StepShape, dual: DualBatch = DualBatch.NEVER) -> DeviceTime:
    return Devices(found, dual).time((shape,), 1)


def played_by(found: Profile, requests: Any, **policy: Any) -> Played:
    spec = policy_spec("vllm_v1", cache__prefix="none", **policy)
    return play(spec, requests, target=found, capacity=Capacity(10_000, 100_000), law_interval=100)


def summary(played: Played, devices: int = 1, price: float | None = None) -> RunSummary:
    offered = len(played.sink.of(Finished))
    modelled = {"price_per_device_hour": price}
    started = RunStarted(
        "run", 1, "plan", "policy", {}, {"modelled": modelled}, "simulation", "modelled", offered, 10_000, 16, 2048,
        devices=devices,
    )  # fmt: skip
    return summarise([started, *played.sink.records], arm="a", repeat=0, tiers={})


# --- one step -----------------------------------------------------------------------------------------------------


def test_collectives_add_latency_and_bytes() -> None:
    """Ten decodes: 1 + 10 x 0.1 ms computed; 0.2 ms + 10 x 0.01 ms told: 2.3 ms, none of it hidden."""
    found = target(tensor=2, collectives=4, collective_ns=0.2 * MS, collective_token_ns=0.01 * MS)
    time = taken(found, decodes(10))
    assert time == pytest.approx((2 * MS, 0.3 * MS, 0, 0, 0, 0))
    assert StepCost(found).step_ns(decodes(10), 1) == 2.3 * MS
    parts = StepCost(found).parts(decodes(10), 1)
    assert parts.device_ns == 2.3 * MS
    assert parts.spread is not None
    assert parts.spread.exposed_ns == 0.3 * MS


def test_a_pipeline_fills_and_empties() -> None:
    """Eight decodes in 2 parts over 4 stages, base 1 ms a pass, 0.1 ms a decode, 0.05 ms to hand on.

    A pass of 4 takes 1.4 ms, a stage 0.35 + 0.05 = 0.4 ms; 2 + 4 - 1 = 5 rounds: 2.0 ms. A device works twice 0.35 and
    hands on twice 0.05, and waits three rounds: 1.2 ms.
    """
    time = taken(target(pipeline=4, micro_batches=2, stage_ns=0.05 * MS), decodes(8))
    assert time == pytest.approx((0.7 * MS, 0.1 * MS, 0, 1.2 * MS, 0, 0))
    assert time.total == pytest.approx(2.0 * MS)


def test_one_request_keeps_one_stage_of_four_busy() -> None:
    """It cannot be cut: three quarters of a device's time is bubble, and the step as long as on one device."""
    time = taken(target(pipeline=4, micro_batches=8), decodes(1))
    assert time.bubble / time.total == pytest.approx(0.75)
    assert time.total == pytest.approx(1.1 * MS)


def test_parts_are_chosen_that_end_the_step_soonest() -> None:
    """Where each part costs 1 ms of itself, one is best for small steps, and more for large ones.

    Over 2 stages n tokens of 0.1 ms in m parts take (m + 1) (1 + 0.1 n / m) / 2: for 4 tokens 1.4 with one part, 1.8
    with two; for 40 tokens 5.0, 4.5 (two), 5.0 (four).
    """
    found = target(pipeline=2)
    assert taken(found, decodes(4)).total == pytest.approx(1.4 * MS)
    assert taken(found, decodes(40)).total == pytest.approx(4.5 * MS)


@pytest.mark.parametrize("dual", DualBatch)
def test_two_half_batches_hide_communication_where_there_is_much_to_compute(dual: DualBatch) -> None:
    """Base 1 ms, 0.1 ms a decode, 4 collectives of 0.02 ms a token together.

    100 decodes in one piece: 11 + 2 = 13 ms. In halves: 6 ms computed and 1 told each, 2 x 6 + 1 / 4 = 12.25 ms, of
    which 0.25 are exposed and 1.75 hidden. Two decodes: 1.2 + 0.04 against 2 x 1.1 + 0.02 / 4 = 2.205: halves are
    slower, and taken only where they are always.
    """
    found = target(tensor=2, collectives=4, collective_token_ns=0.02 * MS)
    large, small = taken(found, decodes(100), dual), taken(found, decodes(2), dual)
    if dual is DualBatch.NEVER:
        assert (large.total, large.hidden) == pytest.approx((13 * MS, 0))
    else:
        assert large == pytest.approx((12 * MS, 0.25 * MS, 1.75 * MS, 0, 0, 0))
    assert small.total == pytest.approx(2.205 * MS if dual is DualBatch.ALWAYS else 1.24 * MS)


def test_halves_are_bound_by_the_link_where_it_is_slow() -> None:
    """2 ms computed and 4 told a half, in 10 rounds: 2 x 4 + 2 / 10 = 8.2 ms; 3.8 of the 8 ms told are hidden."""
    found = target({"base_ms": 0, "decode_request_ms": 0.1}, tensor=2, collectives=10, collective_token_ns=0.2 * MS)
    assert taken(found, decodes(40), DualBatch.ALWAYS) == pytest.approx((4 * MS, 4.2 * MS, 3.8 * MS, 0, 0, 0))


def test_replicas_wait_for_the_most_loaded() -> None:
    """Three decodes on one of two replicas, one on the other: 1.3 and 1.1 ms; the mean waits 0.1 ms."""
    time = Devices(target(data=2)).time((decodes(3), decodes(1)), 1)
    assert time == pytest.approx((1.2 * MS, 0, 0, 0, 0.1 * MS, 0))


def test_requests_join_the_emptiest_replica_and_stay() -> None:
    """0 and 2 share the first replica; when 1 leaves, 3 takes its place; a joining 0 is placed anew."""

    def plan(*requests: int, released: tuple[int, ...] = (), start: int = 0) -> StepPlan:
        grants = tuple(Grant(r, 0, start, 1, (), True, Phase.DECODE) for r in requests)
        return StepPlan(1, grants, released)

    ranks = Ranks(2)
    assert [s.decode_requests for s in ranks.shapes(plan(0, 1, 2))] == [2, 1]
    assert [s.decode_requests for s in ranks.shapes(plan(0, 2, start=1))] == [2]
    assert [s.decode_requests for s in ranks.shapes(plan(0, 2, 3, released=(1,)))] == [2, 1]
    assert [s.decode_requests for s in ranks.shapes(plan(0, 2, 3, released=(0, 3)))] == [2, 1]


# --- experts ------------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 300),
    st.sampled_from([(8, 2, 4), (64, 8, 8), (16, 16, 2), (4, 1, 1)]),
    st.floats(0, 4),
    st.one_of(st.none(), st.floats(0.1, 4)),
    st.integers(0, 50),
    st.integers(0, 2**40),
)
def test_every_choice_is_kept_or_dropped_and_none_twice(
    tokens: int, sizes: tuple[int, int, int], skew: float, factor: float | None, step: int, seed: int
) -> None:
    """A token chooses `used` different experts, so none is chosen by more than all; capacity bounds what it keeps."""
    count, used, groups = sizes
    time = experts(count=count, used=used, groups=groups, skew=skew, capacity_factor=factor, seed=seed)
    loads = ExpertRouter(time).loads(tokens, step)
    kept = [load for place in loads.places for load in place]
    assert len(loads.places) == groups
    assert len(kept) == count
    assert sum(kept) + loads.dropped == loads.chosen == tokens * used
    assert all(0 <= load <= tokens for load in kept)
    if factor is not None:
        assert loads.most <= max(1, -int(-factor * loads.chosen // count))
    assert ExpertRouter(time).loads(tokens, step) == loads


def test_hot_experts_stay_hot_and_steps_differ() -> None:
    time = experts(count=64, used=4, groups=8, skew=1.2)
    router = ExpertRouter(time)
    steps = [[load for place in router.loads(512, step).places for load in place] for step in range(40)]
    hottest = {max(range(64), key=loads.__getitem__) for loads in steps}
    assert len(hottest) <= 3
    assert len({tuple(loads) for loads in steps}) == 40


def test_the_place_of_the_hot_expert_holds_up_the_others() -> None:
    """All of 8 experts are used by each of 10 tokens: 2 places of 4 have 40 choices at 1 us: equal, nobody waits.

    With one expert used, skewed beyond measure, all 10 go to one of two places: 10 us there, 0 on the other; half of
    it, 5 us, is waiting of an average device.
    """
    even = target(expert=2, experts=experts(count=8, used=8, groups=2))
    assert taken(even, decodes(10))[0] == pytest.approx(2 * MS + 40_000)
    assert taken(even, decodes(10)).expert_wait == 0
    hot = target(expert=2, experts=experts(count=4, used=1, groups=2, skew=4))
    time = taken(hot, decodes(10))
    kept = sorted(sum(place) for place in ExpertRouter(experts(count=4, used=1, groups=2, skew=4)).loads(10, 1).places)
    assert time.expert_wait == pytest.approx((kept[1] - kept[0]) * 1000 / 2)
    assert kept[1] >= 9


def test_reading_weights_of_touched_experts_bounds_small_steps() -> None:
    """One token that uses 2 of 8 experts touches 2, in one place 2 x 50 us or in two 50 us; computing is 1 us each."""
    found = target(expert=4, experts=experts(touch_ns=50_000))
    assert taken(found, decodes(1)).total in (pytest.approx(1.1 * MS + 100_000), pytest.approx(1.1 * MS + 50_000))


# --- whole runs -----------------------------------------------------------------------------------------------------


REQUESTS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 15), st.integers(0, 30)), min_size=1, max_size=14).map(
    lambda rows: [request(i, prompt, output, at_ms=at) for i, (prompt, output, at) in enumerate(rows)]
)
SPREADS: dict[str, dict[str, Any]] = {
    "tensor": {"tensor": 4, "collectives": 8, "collective_ns": 1e5, "collective_token_ns": 7e3},
    "pipeline": {"pipeline": 4, "stage_ns": 3e4, "stage_token_ns": 1e3},
    "parts": {"pipeline": 2, "micro_batches": 3, "tensor": 2, "collectives": 4, "collective_ns": 1e5},
    "experts": {"expert": 4, "collectives": 6, "experts": experts(skew=1.0, touch_ns=2e4, dispatch_token_ns=900)},
    "capacity": {"expert": 4, "experts": experts(skew=2.0, capacity_factor=1.25)},
    "replicas": {"data": 2, "expert": 2, "collectives": 6, "experts": experts(groups=2, dispatch_ns=1e4)},
}
COST = {"base_ms": 0.7, "prefill_token_ms": 0.013, "decode_request_ms": 0.031, "context_token_ms": 0.0017}


@pytest.mark.parametrize("spread", SPREADS)
@settings(max_examples=12, deadline=None)
@given(REQUESTS, st.sampled_from(["never", "sooner", "always"]))
def test_devices_add_up_in_every_step(spread: str, requests: Any, dual: str) -> None:
    """The audit's rule, on steps in which prompts and decodes mix."""
    played = played_by(target(COST, **SPREADS[spread]), requests, batch__token_budget=40, execution__dual_batch=dual)
    found = summary(played)
    assert found.audit.passed, found.audit.violations
    assert found.audit.checks["devices add up"] == len(played.sink.of(Step))
    assert found.metrics["unattributed_share_max"].value == 0


def test_the_audit_sees_devices_that_do_not_add_up() -> None:
    played = played_by(target(COST, **SPREADS["experts"]), [request(0, 20, 3)])
    step = played.sink.of(Step)[0]
    place = played.sink.records.index(step)
    for change in ({"bubble_ns": 5}, {"communication_ns": 0}, {"expert_most": 0}, {"hidden_ns": 10**9}):
        wrong = Step(**{name: getattr(step, name) for name in step.__slots__ if name != "spread"},
                     spread=step.spread._replace(**change))  # fmt: skip
        played.sink.records[place] = wrong
        found = {fault.rule for fault in summary(played).audit.violations}
        # What hides more than the run took is beyond its elapsed time, too.
        assert found == {"devices add up"} | ({"R9 exposed within elapsed"} if "hidden_ns" in change else set())


@pytest.mark.parametrize("spread", [name for name in SPREADS if name != "replicas"])
@settings(max_examples=15, deadline=None)
@given(REQUESTS, st.sampled_from(["never", "sooner", "always"]))
def test_fast_forward_is_exact(spread: str, requests: Any, dual: str) -> None:
    """Step times are functions of sums over requests and of the step's number, so nothing changes."""
    found = target(COST, **SPREADS[spread])
    spec = policy_spec("vllm_v1", batch__token_budget=40, cache__prefix="none", execution__dual_batch=dual)
    capacity = Capacity(10_000, 100_000)
    rows: list[RequestRow] = []
    slow = play(spec, requests, target=found, capacity=capacity, law_interval=100)
    cost = StepCost(found, dual_batch=dual_batch_of(spec))
    seen: list[tuple[int, int]] = []
    FastForward(
        build_policy(spec, capacity), cost, rows.append, observe=lambda _step, start, end: seen.append((start, end))
    ).run(requests)
    assert seen == [(step.planned_ns, step.available_ns) for step in slow.sink.of(Step)]
    assert [(row.request, row.end_ns) for row in rows] == [(end.request, end.at_ns) for end in slow.sink.of(Finished)]


def test_fast_forward_refuses_replicas() -> None:
    def keep(_row: RequestRow) -> None: ...

    spec = policy_spec("vllm_v1")
    with pytest.raises(CallerError, match="attention replica"):
        FastForward(build_policy(spec, Capacity(100, 1000)), StepCost(target(data=2)), keep)


def test_communication_is_a_part_of_the_requests_time() -> None:
    """One request alone, 3 tokens: each step computes 1 (prefill) or 1.1 ms (decode) and tells 0.2 ms."""
    found = target(tensor=2, collectives=4, collective_ns=0.2 * MS)
    rows = summary(played_by(found, [request(0, 5, 3)]))
    assert rows.metrics["collective_ms"].value == pytest.approx(0.6)
    assert rows.metrics["exposed_collective_ms"].value == pytest.approx(0.6)
    assert rows.metrics["e2e_mean_ms"].value == pytest.approx(1 + 1.1 + 1.1 + 0.6)
    assert rows.metrics["idle_gap_ms"].value == 0
    assert rows.metrics["expert_load_imbalance"].absence == "not_applicable"
    assert rows.metrics["communication_ms"].absence == "not_applicable"  # of handoffs: another scope (T4)


def test_devices_are_paid_for() -> None:
    """P6. The same run on 8 devices instead of one costs eight times as much."""
    played = played_by(target(tensor=8), [request(0, 5, 30)])
    one, eight = (summary(played, devices, price=2.0).metrics for devices in (1, 8))
    assert eight["cost_per_million_tokens"].value == pytest.approx(8 * (one["cost_per_million_tokens"].value or 0))
    assert eight["device_hours"].value == pytest.approx(8 * (one["device_hours"].value or 0))


# --- scenarios ------------------------------------------------------------------------------------------------------


def spread_over(name: str, **parallel: Any) -> Profile:
    return roofline_profile(name, where="profile", parallel=Parallel(**parallel))


def busy(count: int, prompt: int = 64, output: int = 40) -> list[Any]:
    return [request(index, prompt, output) for index in range(count)]


def value(found: RunSummary, name: str) -> float:
    figure = found.metrics[name].value
    assert figure is not None, (name, found.metrics[name])
    return figure


def test_a_hot_expert_makes_steps_longer_and_capacity_mends_it_at_the_price_of_drops() -> None:
    """P2, G7. Skew raises the 99th percentile of step times; a capacity of 1.25 even shares takes most of that back."""
    even, hot, capped = (
        summary(
            played_by(
                spread_over("mixtral-8x7b@h100", tensor=8, expert=8, **how),
                busy(120, 1024, 8),
                batch__size=64,
                batch__token_budget=1024,
            )
        )
        for how in ({}, {"expert_skew": 0.8}, {"expert_skew": 0.8, "capacity_factor": 1.25})
    )
    assert value(hot, "step_p99_ms") > 1.5 * value(even, "step_p99_ms")
    assert value(capped, "step_p99_ms") < 1.2 * value(even, "step_p99_ms")
    assert value(hot, "expert_load_imbalance") > 2 * value(even, "expert_load_imbalance")
    assert value(hot, "expert_wait_ms") > 10 * value(even, "expert_wait_ms")
    assert value(hot, "expert_dropped_share") == 0
    assert 0.05 < value(capped, "expert_dropped_share") < 0.3


def test_tensor_parallel_over_a_slow_link_is_slower_than_one_device() -> None:
    """P1, G6. Two devices halve the work; over 1 GB/s with 50 us a collective they lose more than that."""
    alone = summary(played_by(roofline_profile("llama-3.1-8b@h100", where="profile"), busy(32)))
    slow, fast = (
        summary(played_by(spread_over("llama-3.1-8b@h100", tensor=2, **link), busy(32)))
        for link in ({"link_gb_per_s": 1, "link_latency_us": 100}, {})
    )
    assert value(fast, "e2e_mean_ms") < value(alone, "e2e_mean_ms") < value(slow, "e2e_mean_ms")
    assert value(slow, "exposed_collective_ms") > value(fast, "exposed_collective_ms")


def test_bubbles_are_a_matter_of_small_batches() -> None:
    """P1. With four micro-batches a step of one request leaves 3 of 4 stages empty; large ones fill them."""
    found = spread_over("llama-3.1-8b@h100", pipeline=4, micro_batches=8)
    one, many = (summary(played_by(found, busy(count, 64, 20), batch__size=64)) for count in (1, 64))
    shares = [value(run, "bubble_ms") / value(run, "step_path_ms") for run in (one, many)]
    assert shares[0] > 0.5 > 0.35 > shares[1]


@pytest.mark.parametrize(
    ("modelled", "fits"),
    [
        ({"profile": "llama-3.1-8b@h100"}, False),
        ({"profile": "llama-3.1-8b@h100x2"}, True),
        ({"profile": "llama-3.1-8b@h100", "parallel": {"tensor": 2}}, True),
        ({"profile": "llama-3.1-8b@h100", "topology": {"groups": {"a": {"count": 2}}}}, False),
        ({"profile": "llama-3.1-8b@h100", "topology": {"groups": {"a": {"parallel": {"tensor": 2}}}}}, True),
    ],
)
def test_dual_batch_is_refused_where_no_instance_has_several_devices(modelled: dict[str, Any], fits: bool) -> None:
    """One device has nobody to talk to, so half batches would be a setting without effect."""
    asked = parse(ModelledTarget, modelled)
    target = TargetSpec(modelled=asked)
    layout = "replicas" if "topology" in modelled else "single"
    policy = policy_spec("vllm_v1", execution__dual_batch="sooner", pools__layout=layout)
    found = choose_profile(modelled["profile"], [], where="profile", parallel=asked.parallel)
    if fits:
        assert check_playable(policy, target, found).execution.dual_batch == "sooner"
    else:
        with pytest.raises(InputError, match=r"execution\.dual_batch.*spread over devices"):
            check_playable(policy, target, found)


def test_dual_batch_hides_communication_in_large_steps_and_gains_nothing_in_small_ones() -> None:
    """M9, R12. Prompts of 4,000 tokens over a link of 100 GB/s; then single decodes, where halves never end sooner."""
    found = spread_over("llama-3.1-70b@h100", tensor=8, link_gb_per_s=100)
    runs = {}
    for size, requests in (("large", busy(4, 4000, 1)), ("small", busy(1, 1, 30))):
        for how in ("never", "sooner"):
            played = played_by(found, requests, execution__dual_batch=how, batch__token_budget=8192)
            runs[size, how] = summary(played)
    assert value(runs["large", "sooner"], "e2e_mean_ms") < 0.95 * value(runs["large", "never"], "e2e_mean_ms")
    assert value(runs["large", "sooner"], "collective_overlap_ratio") > 0.5
    assert value(runs["small", "sooner"], "e2e_mean_ms") == value(runs["small", "never"], "e2e_mean_ms")
    assert value(runs["small", "sooner"], "hidden_collective_ms") == 0
