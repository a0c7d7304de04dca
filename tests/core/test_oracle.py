"""The planner against a slow second reading of the same rules, on random traffic with random ends and cancels."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.policies.presets import Capacity
from scheduler_core.testing.builders import Stepper, grants_of, policy_spec
from scheduler_core.testing.oracle import Oracle, OracleRequest, OracleRules
from scheduler_core.types.records import Preempted

RULES = st.builds(
    OracleRules,
    blocks=st.integers(3, 14),
    block_size=st.sampled_from([1, 2, 4]),
    size=st.integers(1, 5),
    budget=st.integers(2, 24),
    chunked=st.booleans(),
    cap=st.sampled_from([0, 2, 5]),
    watermark=st.sampled_from([0, 1, 2]),
    by_priority=st.booleans(),
)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 20), st.integers(1, 8), st.integers(0, 2)),
        st.tuples(st.just("step"), st.integers(0, 5), st.just(0), st.just(0)),
        st.tuples(st.just("step"), st.integers(0, 5), st.just(0), st.just(0)),
        st.tuples(st.just("abort"), st.integers(0, 8), st.just(0), st.just(0)),
    ),
    max_size=50,
)


@settings(max_examples=200)
@given(rules=RULES, events=EVENTS)
def test_the_planner_reads_the_rules_as_the_oracle_does(rules: Any, events: Any) -> None:
    spec = policy_spec(
        "vllm_v1",
        order__by="priority" if rules.by_priority else "arrival",
        cache__prefix="none",
        cache__block_size=rules.block_size,
        cache__watermark=(rules.watermark + 0.5) / rules.blocks,
        batch__size=rules.size,
        batch__token_budget=rules.budget,
        batch__chunked_prefill=rules.chunked,
        batch__long_prefill_cap=rules.cap,
    )
    stepper, oracle = Stepper(spec, Capacity(rules.blocks, 1000)), Oracle(rules)
    live: list[int] = []
    for number, (kind, first, limit, priority) in enumerate([*events, *[("step", 0, 0, 0)] * 60]):
        if kind == "submit":
            if stepper.submit(number, first, limit=limit, priority=priority, arrival_ns=number) is None:
                oracle.submit(OracleRequest(number, first, limit, priority, number))
                live.append(number)
        elif kind == "abort" and live:
            victim = live.pop(first % len(live))
            stepper.instance.abort(victim)
            oracle.abort(victim)
        elif kind == "step":
            stepper.records.clear()
            planned, expected = stepper.try_plan(), oracle.plan()
            assert (grants_of(planned) if planned else {}) == expected
            assert [r.request for r in stepper.records if isinstance(r, Preempted)] == oracle.victims
            last = {request for request in expected if (request + number) % 7 == first}
            oracle.complete(expected, last)
            if planned:
                for ended in stepper.complete(planned, last=sorted(last)).ended:
                    live.remove(ended.request)
    assert sorted(live) == sorted(item.id for item in oracle.running + oracle.waiting)
