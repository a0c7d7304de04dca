"""THE property of the simulator: fast-forward on or off, the same decisions at the same times for the same requests."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.drive.cuts import CacheResetAt, Outside
from scheduler_core.policies.presets import Capacity, build_policy
from scheduler_core.sim.cost import StepCost
from scheduler_core.sim.fastforward import FastForward
from scheduler_core.spec.target import HostTime
from scheduler_core.testing.builders import play, policy_spec, profile, request
from scheduler_core.types.patience import Patience
from scheduler_core.types.records import Admitted, Arrived, Finished, Preempted, Step

PLAIN = profile(
    base_ms=0.7, prefill_token_ms=0.013, decode_request_ms=0.031, context_token_ms=0.0017, acceptance=0.7,
    draft_ratio=0.1,
)  # fmt: skip
HOST = HostTime(
    base_ns=120_000, request_ns=9_000, joined_ns=210_000, wake_knots=((2_000_000, 350_000), (9_000_000, 1e6))
)
TARGET = PLAIN.model_copy(
    update={"cost": PLAIN.cost.model_copy(update={"batch_knots": ((1, 0), (4, 33_000), (9, 40_000))}), "host": HOST}
)


def plain(spec: Any, requests: Any, capacity: Any, **ends: Any) -> Any:
    """Steps and rows of a run in which every grant is planned by itself."""
    played = play(spec, requests, capacity=capacity, target=TARGET, law_interval=7, **ends)
    steps = [
        (
            s.id,
            s.planned_ns,
            s.available_ns,
            s.kv_free + s.kv_cached,
            [(*row[:5], bool(row[5]), row[6]) for row in s.grants],
        )
        for s in played.sink.of(Step)
    ]
    rows = {}
    arrived = {r.request: r for r in played.sink.of(Arrived)}
    hits = {r.request: r.hit_tokens for r in played.sink.of(Admitted) if not r.resumed}
    lost: dict[int, int] = {}
    for record in played.sink.of(Preempted):
        lost[record.request] = lost.get(record.request, 0) + 1
    started: dict[int, int] = {}
    first: dict[int, int] = {}
    for step in played.sink.of(Step):
        for row in step.grants:
            started.setdefault(row[0], step.planned_ns)
            if row[5]:
                first.setdefault(row[0], step.available_ns)
    for end in played.sink.of(Finished):
        r = end.request
        rows[r] = (
            r, arrived[r].at_ns, started.get(r), first.get(r), end.at_ns, end.outcome, end.reason,
            arrived[r].prompt_tokens, end.output_tokens, lost.get(r, 0), hits.get(r, 0) if r in started else 0,
        )  # fmt: skip
    return steps, rows


def fused(spec: Any, requests: Any, capacity: Any, **ends: Any) -> Any:
    """The same by fast-forward, each step expanded."""
    rows: list[Any] = []
    steps: list[Any] = []
    simulation = FastForward(
        build_policy(spec, replace(capacity, profile=TARGET)),
        StepCost(TARGET),
        rows.append,
        outside=Outside(**ends),
        observe=lambda step, start, end: steps.append(
            (step.id, start, end, simulation.instance.occupancy(), simulation.instance.expand(step))
        ),
    )
    report = simulation.run(requests)
    simulation.instance.check()
    expanded = [(i, start, end, now.kv_free + now.kv_cached, grants) for i, start, end, now, grants in steps]
    unseen: list[Any] = []  # nobody looks on: then whole stretches of steps are taken at once
    policy = build_policy(spec, replace(capacity, profile=TARGET))
    again = FastForward(policy, StepCost(TARGET), unseen.append, outside=Outside(**ends)).run(requests)
    assert (unseen, again) == (rows, report)
    return expanded, {row.request: tuple(row) for row in rows}, report


CACHED = st.one_of(
    st.tuples(st.just("none"), st.just("lru")),
    st.tuples(st.just("hash"), st.sampled_from(["lru", "lfu", "slru", "aged"])),
    st.tuples(st.just("radix"), st.sampled_from(["lru", "fifo", "lfu", "slru", "aged", "cost"])),
)

STOPPED = st.one_of(
    st.tuples(st.sampled_from(["recompute", "keep"]), st.just(0)),
    st.tuples(st.sampled_from(["swap", "cheapest"]), st.sampled_from([2, 6, 40])),
)
LEVELLED = st.builds(
    lambda size, budget, quantum, host, watermark, bound: policy_spec(
        "fastserve",
        order__levels=4,
        order__quantum_ms=quantum,
        order__starvation_ms=bound,
        cache__block_size=4,
        cache__host_blocks=host,
        cache__host_watermark=watermark,
        batch__size=size,
        batch__token_budget=budget,
    ),
    st.integers(1, 6),
    st.sampled_from([5, 12, 40]),
    st.sampled_from([0.5, 2]),
    st.sampled_from([1, 5, 12, 60]),
    st.sampled_from([0, 0.1, 0.5]),
    st.sampled_from([0, 15, 3000]),
)
SPECS = st.one_of(
    LEVELLED,
    st.builds(
        lambda order, cached, admit, chunked, cap, size, budget, watermark, stopped: policy_spec(
            "vllm_v1",
            order__by=order,
            cache__prefix=cached[0],
            cache__eviction=cached[1],
            cache__preemption=stopped[0],
            cache__host_blocks=stopped[1],
            cache__admit=admit,
            cache__block_size=4,
            cache__watermark=watermark,
            batch__chunked_prefill=chunked,
            batch__long_prefill_cap=cap,
            batch__size=size,
            batch__token_budget=budget,
        ),
        st.sampled_from(["arrival", "priority", "urgency", "shortest"]),
        CACHED,
        st.sampled_from(["known", "limit"]),
        st.booleans(),
        st.sampled_from([0, 3]),
        st.integers(1, 6),
        st.sampled_from([3, 8, 40]),
        st.sampled_from([0, 0.2]),
        STOPPED,
    ),
    st.builds(
        lambda name, size, order, cached: policy_spec(
            name,
            order__by=order,
            order__age_tokens=4,
            batch__size=size,
            batch__token_budget=24,
            cache__block_size=4,
            cache__prefix=cached[0],
            cache__eviction=cached[1],
        ),
        st.sampled_from(["vllm_v1", "sglang"]),
        st.integers(1, 4),
        st.sampled_from(["longest_prefix", "prefix_tree"]),
        CACHED,
    ),
    st.builds(
        lambda name, size, budget: policy_spec(name, batch__size=size, batch__token_budget=budget, cache__block_size=4),
        st.sampled_from(["sarathi", "sglang", "vtc", "nano", "reserve_max", "fastserve"]),
        st.integers(1, 6),
        st.sampled_from([5, 8, 40]),
    ),
    st.builds(
        lambda name, quota, own, size, stopped: policy_spec(
            name,
            batch__size=size,
            batch__token_budget=24,
            cache__block_size=4,
            cache__tenant_quota=quota,
            cache__tenant_quotas={"t0": {"share": own}},
            cache__preemption=stopped[0],
            cache__host_blocks=stopped[1],
        ),
        st.sampled_from(["vllm_v1", "sarathi", "sglang", "vtc", "nano"]),
        st.sampled_from([0.3, 0.6]),
        st.sampled_from([0.2, 1]),
        st.integers(2, 6),
        STOPPED,
    ),
    st.builds(
        lambda order, mixed, chunked, size, threshold, queue, cached: policy_spec(
            "sglang",
            order__by=order,
            order__preempt_threshold=threshold,
            batch__size=size,
            batch__token_budget=12,
            batch__input_budget=16,
            batch__mixed_chunk=mixed,
            batch__chunked_prefill=chunked,
            batch__queue_limit=queue,
            cache__block_size=4,
            cache__prefix=cached[0],
            cache__eviction=cached[1],
            cache__conservativeness=0.3,
        ),
        st.sampled_from(["arrival", "priority"]),
        st.booleans(),
        st.booleans(),
        st.integers(1, 5),
        st.sampled_from([0, 1]),
        st.sampled_from([0, 0, 2]),
        CACHED,
    ),
    st.builds(
        lambda name, size, stopped: policy_spec(
            name,
            batch__size=size,
            batch__token_budget=24,
            cache__block_size=4,
            cache__preemption=stopped[0],
            cache__host_blocks=stopped[1],
        ),
        st.sampled_from(["sarathi", "sglang", "vtc", "nano"]),
        st.integers(2, 6),
        STOPPED,
    ),
    st.builds(
        lambda by, length, slots, bound, admit, predict, size: policy_spec(
            "vllm_v1",
            order__by=by,
            order__length=length,
            order__takes_slots=slots,
            order__starvation_ms=bound,
            cache__admit=admit,
            cache__prefix="none",
            cache__block_size=4,
            predict__by=predict,
            predict__sigma=0.4,
            batch__size=size,
            batch__token_budget=24,
        ),
        st.sampled_from(["shortest", "shortest_prefill", "longest", "response_ratio", "deadline", "levels"]),
        st.sampled_from(["declared", "predicted", "hidden"]),
        st.booleans(),
        st.sampled_from([0, 4, 25]),
        st.sampled_from(["first_chunk", "known", "predicted"]),
        st.sampled_from(["none", "mean", "quantile", "class"]),
        st.integers(1, 5),
    ),
    st.builds(
        lambda size, wait, budget, prefix: policy_spec(
            "static",
            batch__size=size,
            batch__max_wait_ms=wait,
            batch__token_budget=budget,
            cache__block_size=4,
            cache__prefix=prefix,
        ),
        st.integers(1, 5),
        st.sampled_from([0, 3, 50]),
        st.sampled_from([8, 40]),
        st.sampled_from(["none", "hash"]),
    ),
)
REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 30),  # gap, ms
        st.integers(1, 30),  # prompt
        st.integers(1, 25),  # output
        st.integers(0, 8),  # limit above the output
        st.integers(0, 2),  # priority
        st.integers(0, 3),  # shared blocks
        st.booleans(),  # waits for an earlier request
    ),
    min_size=1,
    max_size=14,
)


def build(rows: Any, scale: Any) -> Any:
    at, requests = 0.0, []
    for index, (gap, prompt, output, above, priority, shared, dependent) in enumerate(rows):
        at += gap * scale
        changes = {"output_limit": output + above, "priority": priority, "tenant": f"t{priority}"}
        changes["prefix_blocks"] = tuple(range(shared))
        if dependent and index:
            after = (index // 2, index - 1) if above % 2 else (index // 2,)  # one is waited for, or two
            requests.append(request(index, prompt, output, at_ms=gap, after=after, **changes))
        else:
            requests.append(request(index, prompt, output, at_ms=at, **changes))
    return requests


@settings(max_examples=120)
@given(spec=SPECS, rows=REQUESTS, blocks=st.integers(6, 40), scale=st.sampled_from([0, 0.1, 1]))
def test_fast_forward_changes_nothing(spec: Any, rows: Any, blocks: Any, scale: Any) -> None:
    requests, capacity = build(rows, scale), Capacity(blocks, 60)
    expected_steps, expected_rows = plain(spec, requests, capacity)
    steps, actual_rows, report = fused(spec, requests, capacity)
    assert steps == expected_steps
    assert actual_rows == expected_rows
    assert report.requests == len(requests)


def without_samples(steps: Any) -> Any:
    """Steps without who emitted: the token of a request that ends from outside while a step runs is not taken."""
    return [(*head, [(*row[:5], row[6]) for row in grants]) for *head, grants in steps]


@settings(max_examples=120)
@given(
    spec=SPECS,
    rows=REQUESTS,
    blocks=st.integers(6, 40),
    scale=st.sampled_from([0, 0.1, 1]),
    cancels=st.lists(st.tuples(st.integers(0, 13), st.integers(0, 90_000_000)), max_size=6),
    waits=st.tuples(st.sampled_from([None, 3_000_000, 20_000_000]), st.sampled_from([None, 9_000_000, 40_000_000])),
    own=st.sampled_from([None, 0, 1_500_000, 12_000_000]),
    resets=st.lists(st.builds(CacheResetAt, st.integers(0, 90_000_000), st.booleans()), max_size=3),
)
def test_fast_forward_meets_cancels_time_limits_and_resets_as_they_come(
    spec: Any, rows: Any, blocks: Any, scale: Any, cancels: Any, waits: Any, own: Any, resets: Any
) -> None:
    """Also in the middle of a step, of a repeated one, and of one that admits or preempts."""
    requests, capacity = build(rows, scale), Capacity(blocks, 60)
    requests[-1] = replace(requests[-1], cancel_ns=own)
    ends = {"cancels": cancels, "patience": {"default": Patience(*waits)}, "resets": resets}
    expected_steps, expected_rows = plain(spec, requests, capacity, **ends)
    steps, actual_rows, _ = fused(spec, requests, capacity, **ends)
    assert without_samples(steps) == without_samples(expected_steps)
    assert actual_rows == expected_rows


def test_a_backlog_that_times_out_ends_at_its_limits() -> None:
    """One slot, 300 requests at once of 8 ms each, 20 ms to start: three start, the others end at 20 ms exactly."""
    requests = [request(index, 5, 10, tier="fast" if index else "slow") for index in range(300)]
    policy = build_policy(policy_spec("vllm_v1", batch__size=1), Capacity(100, 1000))
    rows: list[Any] = []
    limits = {"fast": Patience(queue_ns=20_000_000)}
    FastForward(policy, StepCost(profile(base_ms=0.8)), rows.append, outside=Outside(patience=limits)).run(
        iter(requests)
    )
    late = [row for row in rows if row.outcome == "timed_out"]
    assert [row.request for row in rows if row.outcome == "finished"] == [0, 1, 2]
    assert {(row.end_ns, row.reason, row.output_tokens) for row in late} == {(20_000_000, "queue_timeout", 0)}
    assert len(late) == 297


def test_who_ran_before_a_member_comes_first_in_a_decode_pass_too() -> None:
    """Budget 5, eight one-token prompts that decode: the sixth admitted is left out, then comes before the seventh."""
    spec = policy_spec("nano", batch__size=6, batch__token_budget=5, cache__block_size=4)
    requests = [request(i, 1, output, output_limit=output) for i, output in enumerate([1] * 7 + [2, 3, 3, 3, 3, 2, 2])]
    capacity = Capacity(6, 60)
    assert fused(spec, requests, capacity)[:2] == plain(spec, requests, capacity)


def test_most_steps_are_repeated_not_planned() -> None:
    """One request of 400 tokens: its first step, a planned decode, and at its last token one more; the rest repeats."""
    _, rows, report = fused(policy_spec("vllm_v1"), [request(0, 10, 400)], Capacity(100, 1000))
    assert rows[0][8] == 400
    assert (report.steps, report.planned) == (400, 2)


def test_a_backlog_is_read_only_as_the_queue_runs_low() -> None:
    """2,000 requests at once with two slots: the stream is never more than the queue's reserve ahead."""
    taken = 0

    def stream() -> Any:
        nonlocal taken
        for index in range(2000):
            taken += 1
            yield request(index, 5, 5)

    ahead = []
    done = 0

    def sink(row: Any) -> None:
        nonlocal done
        done += 1
        ahead.append(taken - done)

    policy = build_policy(policy_spec("vllm_v1", batch__size=2), Capacity(100, 1000))
    report = FastForward(policy, StepCost(TARGET), sink).run(stream())
    assert report.requests == done == 2000
    assert max(ahead) < 100
