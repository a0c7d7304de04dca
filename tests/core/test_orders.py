"""Orders of waiting requests: what each goes by, and how long anybody can be passed."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.policies.mlfq import LevelRules
from scheduler_core.policies.presets import Capacity, build_policy
from scheduler_core.sched.instance import Instance
from scheduler_core.testing.builders import Stepper, play, policy_spec, profile, request
from scheduler_core.types.patience import Promise
from scheduler_core.types.records import Admitted, Arrived, Finished, Paused, Preempted, Resumed
from scheduler_core.types.time import NS_PER_MS

ROOMY = Capacity(1000, 10_000)


def admissions(played: Any) -> list[int]:
    return [record.request for record in played.sink.of(Admitted) if not record.resumed]


def one_at_a_time(by: str, **settings: Any) -> Any:
    return policy_spec("vllm_v1", order__by=by, batch__size=1, **settings)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ({"by": "arrival"}, [0, 1, 2, 3]),
        ({"by": "shortest"}, [0, 3, 1, 2]),  # declared 50, 90, 20
        ({"by": "shortest_prefill"}, [0, 2, 1, 3]),  # prompts 40, 10, 70
        ({"by": "longest"}, [0, 2, 1, 3]),
        ({"by": "priority"}, [0, 2, 3, 1]),  # 2, 0, 1
    ],
)
def test_each_order_goes_by_its_own_input(order: Any, expected: Any) -> None:
    """One runs, three come within 3 ms, and each order ranks the three by another of their properties."""
    requests = [
        request(0, 20, 10),
        request(1, 40, 5, at_ms=1, output_limit=50, priority=2),
        request(2, 10, 5, at_ms=2, output_limit=90, priority=0),
        request(3, 70, 5, at_ms=3, output_limit=20, priority=1),
    ]
    settings = {f"order__{key}": value for key, value in order.items()}
    assert admissions(play(policy_spec("vllm_v1", batch__size=1, **settings), requests)) == expected


def test_least_slack_counts_promise_and_work() -> None:
    """Promised first tokens: gold 100 ms, bronze 90, none 60 s. At 0.1 ms a prompt token the slack is

    gold of 500 tokens: 100 - 50 = 50; bronze of 10: 90 - 1 = 89; none: the last.
    """
    capacity = Capacity(
        1000,
        10_000,
        promises={"gold": Promise(ttft_ns=100 * NS_PER_MS), "bronze": Promise(ttft_ns=90 * NS_PER_MS)},
    )
    requests = [
        request(0, 20, 10),
        request(1, 10, 2, at_ms=1, tier="none"),
        request(2, 10, 2, at_ms=1, tier="bronze"),
        request(3, 500, 2, at_ms=1, tier="gold"),
    ]
    assert admissions(
        play(one_at_a_time("deadline", order__prefill_us_per_token=100), requests, capacity=capacity)
    ) == [0, 3, 2, 1]


def test_the_response_ratio_grows_with_what_is_computed_meanwhile() -> None:
    """While 0 runs, 1 (100 tokens) waits from the start and 2 (20 tokens) comes after the prefill of 0.

    At 0's end nothing was computed since 2 came, 60 tokens since 1: 60 / 100 against 0 / 20.
    """
    requests = [request(0, 60, 4), request(1, 100, 2), request(2, 20, 2, at_ms=2.5)]
    assert admissions(play(one_at_a_time("response_ratio"), requests)) == [0, 1, 2]
    # With a third of 60 tokens run in between, 2 has 60 / 20 and a newcomer of 100 tokens nothing.
    requests = [request(0, 60, 4), request(1, 60, 4), request(2, 20, 2, at_ms=4.5), request(3, 100, 2, at_ms=4.7)]
    assert admissions(play(one_at_a_time("response_ratio"), requests)) == [0, 1, 2, 3]


def test_more_than_128_waiting_are_taken_as_they_came() -> None:
    """G-04: 130 of falling length wait; the first 2 go by entry, then 128 are ranked and the shortest goes first."""
    requests = [request(0, 200, 2), *(request(i, 300 - i, 1, at_ms=0.1) for i in range(1, 132))]
    order = admissions(play(one_at_a_time("response_ratio"), requests))
    assert order[:4] == [0, 1, 2, 3]
    assert order[4] == 131


def test_a_shorter_request_takes_a_slot_of_a_full_batch_once() -> None:
    """One slot, aged 0.1 ms a token: 0 declares 900 tokens; 1, which declares 5, takes its slot, and 0 comes back."""
    spec = one_at_a_time("shortest", order__takes_slots=True, order__age_ms_per_token=0.1)
    played = play(spec, [request(0, 20, 30, output_limit=900), request(1, 20, 5, at_ms=5)])
    assert [record.request for record in played.sink.of(Preempted)] == [0]
    ends = {record.request: record.at_ns for record in played.sink.of(Finished)}
    assert ends[1] < ends[0]


def test_requests_under_deadlines_do_not_push_each_other_out_in_turn() -> None:
    """Each takes a slot at most once, before its first token: preemptions stay below the number of requests."""
    capacity = Capacity(1000, 10_000, promises={"default": Promise(ttft_ns=5 * NS_PER_MS, tpot_ns=NS_PER_MS)})
    spec = one_at_a_time("deadline", order__takes_slots=True)
    played = play(spec, [request(i, 20, 40, at_ms=3 * i) for i in range(8)], capacity=capacity)
    assert 0 < len(played.sink.of(Preempted)) < 8
    assert played.report.outcomes == {"finished": 8}


ORDERS = ["priority", "urgency", "shortest", "shortest_prefill", "longest", "response_ratio", "deadline", "levels"]


@settings(max_examples=80)
@given(
    by=st.sampled_from(ORDERS),
    hidden=st.booleans(),
    size=st.integers(1, 3),
    bound=st.sampled_from([5, 30, 200]),
    blocks=st.sampled_from([8, 14, 100]),
    swaps=st.booleans(),
    rows=st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, 40), st.integers(1, 20), st.integers(0, 2)),
        min_size=2,
        max_size=16,
    ),
)
def test_nobody_waits_past_the_bound_and_is_passed(
    by: Any, hidden: Any, size: Any, bound: Any, blocks: Any, swaps: Any, rows: Any
) -> None:
    """Whoever has waited the bound is passed by nobody who entered the queue later, under every order.

    A newcomer enters when it arrives, others when they are stopped, wherever their KV is then.
    """
    at, requests = 0, []
    for index, (gap, prompt, output, priority) in enumerate(rows):
        at += gap
        requests.append(request(index, prompt, output, at_ms=at, output_limit=output + priority, priority=priority))
    length = "hidden" if hidden else "declared"
    spec = policy_spec(
        "vllm_v1",
        order__by=by,
        order__length=length,
        order__starvation_ms=bound,
        batch__size=size,
        cache__block_size=4,
        batch__token_budget=24,
        **({"cache__preemption": "swap", "cache__host_blocks": 12} if swaps and by != "response_ratio" else {}),
    )
    played = play(spec, requests, capacity=Capacity(blocks, 60))
    entered: dict[int, int] = {}
    for record in played.sink.of(Arrived, Admitted, Resumed, Preempted, Paused, Finished):
        if isinstance(record, Finished):
            entered.pop(record.request, None)
        elif isinstance(record, Admitted | Resumed):
            since = entered.pop(record.request)
            starving = [at for at in entered.values() if at + bound * NS_PER_MS <= record.at_ns]
            assert all(since <= at for at in starving)
        else:
            entered.setdefault(record.request, record.at_ns)


def test_without_a_bound_urgent_traffic_starves_the_rest_and_with_one_it_does_not() -> None:
    """An urgent request of 10 ms every 9 ms for a second; an ordinary one comes at 1 ms. The bound is 100 ms."""
    requests = [request(0, 20, 10), request(1, 20, 10, at_ms=1, priority=5)]
    requests += [request(i, 20, 10, at_ms=9 * (i - 1)) for i in range(2, 112)]
    waits = {}
    for bound in (0, 100):
        played = play(one_at_a_time("priority", order__starvation_ms=bound), requests)
        waits[bound] = next(r.at_ns for r in played.sink.of(Admitted) if r.request == 1) / 1e6
    assert waits[0] > 1000
    assert 101 <= waits[100] <= 111  # at the first step boundary after the bound at which the slot is free


# --- levels ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("prefill_ms", "level"), [(35, 2), (10, 0), (10.1, 1), (1e6, 5)])
def test_skip_join_level(prefill_ms: Any, level: Any) -> None:
    """Quanta 10, 20, 40, ... ms: the first that covers the prefill (FS-01); the last level takes what is longer."""
    assert LevelRules(prefill_token_ns=prefill_ms * NS_PER_MS).level_of_prefill(1) == level


def level_of(instance: Instance, index: int) -> int:
    levels: Any = instance.policy.order
    return int(levels.level(instance._state.requests[index]))


def fastserve(**settings: Any) -> Any:
    return policy_spec("fastserve", order__prefill_us_per_token=1, **settings)


def test_a_request_sinks_when_its_quantum_is_used_up() -> None:
    """Steps of 6 ms, quantum 10, 20, 40: after 2 steps 12 > 10, level 1; after 4 more 24 > 20, level 2 (FS-03)."""
    stepper = Stepper(fastserve(), ROOMY)
    stepper.submit(0, 20)
    seen = []
    for _ in range(8):
        stepper.step()
        stepper.now += 6 * NS_PER_MS - 1
        seen.append(level_of(stepper.instance, 0))
    assert seen == [0, 0, 1, 1, 1, 1, 2, 2]  # charged when the next step is planned


def test_a_newcomer_of_a_higher_level_takes_the_slot_of_one_that_sank() -> None:
    """One slot: 0 sinks to level 1, 1 joins level 0 and takes the slot; 0 waits at the front of its level (FS-03).

    Its slot alone was wanted, so it keeps its blocks, and computes nothing again.
    """
    spec = fastserve(batch__size=1)
    requests = [request(0, 20, 40), request(1, 20, 5, at_ms=15), request(2, 20, 5, at_ms=16)]
    played = play(spec, requests)
    stops = [(r.request, r.how, r.reason) for r in played.sink.of(Paused)]
    assert (stops, played.sink.of(Preempted)) == ([(0, "keep", "priority")], [])
    assert admissions(played) == [0, 1, 2]
    ends = sorted((record.at_ns, record.request) for record in played.sink.of(Finished))
    assert [request for _, request in ends] == [1, 2, 0]


@pytest.mark.parametrize(("preemption", "stop"), [("swap", ("paused", "swap")), ("recompute", ("preempted", ""))])
def test_blocks_are_taken_from_the_lowest_level_too(preemption: str, stop: Any) -> None:
    """Two slots, a pool of 10 blocks of 4: 0 holds 8 and has sunk; 1 needs 5, so 0 gives way though a slot is free.

    Its blocks go to the host, or are lost where it is to be computed again.
    """
    spec = fastserve(batch__size=2, cache__block_size=4, cache__preemption=preemption)
    requests = [request(0, 16, 16), request(1, 18, 2, at_ms=12)]
    played = play(spec, requests, capacity=Capacity(10, 100))
    stops = played.sink.of(Preempted, Paused)
    assert [(r.request, r.kind, getattr(r, "how", "")) for r in stops] == [(0, *stop)]
    assert played.report.outcomes == {"finished": 2}


def test_short_answers_pass_long_ones_without_being_known() -> None:
    """Ten long answers (400 tokens) keep both slots; short ones (3 tokens) come every 40 ms.

    By arrival a short one waits for a long one to end, 400 ms and more; by levels only for the next step.
    """
    requests = [request(i, 20, 400) for i in range(10)]
    requests += [request(10 + i, 20, 3, at_ms=50 + 40 * i) for i in range(20)]
    worst = {}
    for spec in (fastserve(batch__size=2), policy_spec("vllm_v1", batch__size=2)):
        played = play(spec, requests, target=profile(base_ms=1))
        arrived = {record.request: record.at_ns for record in played.sink.of(Arrived)}
        stay = {r.request: r.at_ns - arrived[r.request] for r in played.sink.of(Finished)}
        worst[spec.policy] = max(stay[i] for i in range(10, 30)) / 1e6
        assert played.report.outcomes == {"finished": 30}
    assert worst["vllm_v1"] > 400
    assert worst["fastserve"] < 10


def test_a_bound_is_set_for_every_order_that_has_none_of_its_own() -> None:
    unbounded = {"longest", "response_ratio", "levels"}
    for by in ORDERS:
        policy = build_policy(policy_spec("vllm_v1", order__by=by), ROOMY)
        assert (policy.starvation_ns is not None) == (by in unbounded)
        bounded = build_policy(policy_spec("vllm_v1", order__by=by, order__starvation_ms=7), ROOMY)
        assert bounded.starvation_ns == 7 * NS_PER_MS
    hidden = build_policy(policy_spec("vllm_v1", order__by="shortest", order__length="hidden"), ROOMY)
    assert hidden.starvation_ns == 30_000 * NS_PER_MS
