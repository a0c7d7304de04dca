"""THE property of fleets: played from event to event or step by step, a cluster does the same for the same requests."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from scheduler_core.cluster.build import Site, build_cluster
from scheduler_core.drive.cluster import ClusterDriver
from scheduler_core.drive.cuts import Outside
from scheduler_core.policies.presets import Capacity
from scheduler_core.sim.cost import StepCost
from scheduler_core.sim.executor import SimulatedExecutor, TrueOutputs
from scheduler_core.sim.fleet import Fleet, why_step_by_step
from scheduler_core.spec.topology import InstanceGroup, Topology
from scheduler_core.testing.builders import ListSink, policy_spec, profile, request
from scheduler_core.types.cluster_records import ClusterRecord, Handoff, Revoked
from scheduler_core.types.errors import CallerError
from scheduler_core.types.patience import Patience
from scheduler_core.types.records import Admitted, Arrived, Finished, Step

COSTLY = profile(base_ms=0.7, prefill_token_ms=0.013, decode_request_ms=0.031, context_token_ms=0.0017, acceptance=0.7)


def site(groups: Mapping[str, int], blocks: int, target: Any, **links: Any) -> Site:
    topology = Topology(groups={name: InstanceGroup(count=count) for name, count in groups.items()}, **links)
    cost = StepCost(target)
    capacities = dict.fromkeys(groups, Capacity(blocks, 1000, target))
    return Site(topology, capacities, lambda _, tokens: cost.duration_ns(tokens, 0, 0, 0, 0))


def stepped(spec: Any, place: Site, requests: Sequence[Any], target: Any, outside: Outside, noise: int | None) -> Any:
    """Rows, what the cluster recorded, and totals, played step by step."""
    cluster, sink, outputs = build_cluster(spec, place), ListSink(), TrueOutputs()
    seeds = [None if noise is None else noise + index for index in range(len(cluster.members))]
    report = ClusterDriver(
        cluster=cluster,
        requests=requests,
        executors=[
            SimulatedExecutor(profile=target, outputs=outputs, noise_seed=seed, block_size=spec.cache.block_size or 16)
            for seed in seeds
        ],
        sink=sink,
        stop=lambda: False,
        cancels=outside.cancels,
        patience=outside.patience,
        law_interval=7,
    ).run()
    rows = _rows(sink)
    records = [
        record for record in sink.records if isinstance(record, ClusterRecord) and not isinstance(record, Revoked)
    ]
    return rows, records, (report.steps, len(rows))


def _rows(sink: ListSink) -> dict[int, tuple[Any, ...]]:
    arrived = {record.request: record for record in sink.of(Arrived)}
    hits: dict[int, int] = {}
    for admitted in sink.of(Admitted):
        hits.setdefault(admitted.request, admitted.hit_tokens)
    started: dict[int, int] = {}
    first: dict[int, int] = {}
    for step in sink.of(Step):
        for row in step.grants:
            started.setdefault(row[0], step.planned_ns)
            if row[5]:
                first.setdefault(row[0], step.available_ns)
    return {
        end.request: (
            arrived[end.request].at_ns, started.get(end.request), first.get(end.request), end.at_ns, end.outcome,
            end.reason, end.output_tokens, hits.get(end.request, 0) if end.request in started else 0,
        )
        for end in sink.of(Finished)
    }  # fmt: skip


def fast(spec: Any, place: Site, requests: Iterable[Any], target: Any, outside: Outside, noise: int | None) -> Any:
    """The same by a fleet."""
    rows: dict[int, tuple[Any, ...]] = {}
    records: list[Any] = []
    count = place.topology.instances
    seeds = [None if noise is None else noise + index for index in range(count)]

    def keep(row: Any, _instance: int) -> None:
        assert row.request not in rows
        rows[row.request] = (
            row.arrival_ns, row.started_ns, row.first_token_ns, row.end_ns, row.outcome, row.reason,
            row.output_tokens, row.hit_tokens,
        )  # fmt: skip

    fleet = Fleet(
        spec, place, [StepCost(target, seed) for seed in seeds], keep, outside=outside, observe=records.append
    )
    report = fleet.run(requests)
    fleet.check()
    assert report.handoffs == Counter((r.action, r.reason) for r in records if isinstance(r, Handoff))
    return rows, records, (report.steps, report.requests)


REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 12),  # gap, ms
        st.integers(1, 30),  # prompt
        st.integers(1, 14),  # output
        st.integers(0, 3),  # session
        st.booleans(),  # waits for an earlier request
    ),
    min_size=1,
    max_size=16,
)


def build(rows: Any, scale: float, *, turns: bool, own_cancel: int | None) -> list[Any]:
    at, requests = 0.0, []
    for index, (gap, prompt, output, session, dependent) in enumerate(rows):
        at += gap * scale
        shared = (session + 1, 90 + session)[: prompt // 8]
        after = {"after": (index // 2,)} if turns and dependent and index else {}
        requests.append(
            request(
                index, prompt, output, at_ms=gap * scale if after else at, session=session, prefix_blocks=shared,
                tenant=f"t{session}", cancel_ns=own_cancel if index == 3 else None, **after,
            )
        )  # fmt: skip
    return requests


POLICIES = st.tuples(
    st.sampled_from(["vllm_v1", "static", "sarathi", "sglang", "vtc", "nano", "reserve_max"]),
    st.sampled_from(["none", "hash", "radix"]),
    st.integers(1, 4),  # batch size
    st.sampled_from([8, 20, 40]),  # token budget
    st.sampled_from([0, 0, 3]),  # draft tokens
)
OUTSIDE = st.one_of(
    st.just((Outside(), None)),
    st.tuples(
        st.builds(
            lambda cancels, waits: Outside(cancels=cancels, patience={"default": Patience(*waits)}),
            st.lists(st.tuples(st.integers(0, 15), st.integers(0, 40_000_000)), max_size=4),
            st.tuples(st.sampled_from([None, 3_000_000]), st.sampled_from([None, 9_000_000, 40_000_000])),
        ),
        st.sampled_from([None, 0, 1_500_000, 12_000_000]),
    ),
)
SCALES = st.sampled_from([0, 0.1, 1])
NOISE = st.sampled_from([None, None, 5])


def policy(drawn: Any, **pools: Any) -> Any:
    name, prefix, size, budget, drafts = drawn
    if name in ("vllm_v1", "sglang"):
        pools["cache__prefix"] = prefix
    pools["execution__draft_tokens"] = drafts
    return policy_spec(name, batch__size=size, batch__token_budget=budget, cache__block_size=4, **pools)


@settings(max_examples=150, deadline=None)
@given(
    drawn=POLICIES,
    rows=REQUESTS,
    turns=st.booleans(),
    outside=OUTSIDE,
    route=st.sampled_from(["round_robin", "least_loaded", "two_choices", "sticky", "prefix", "first_token"]),
    look_every_ms=st.sampled_from([0, 3]),
    instances=st.integers(1, 4),
    blocks=st.sampled_from([12, 60]),
    scale=SCALES,
    noise=NOISE,
)
def test_replicas_behind_any_router_do_the_same(
    drawn: Any, rows: Any, turns: bool, outside: Any, route: str, look_every_ms: float, instances: int, blocks: int,
    scale: float, noise: Any,
) -> None:  # fmt: skip
    spec = policy(drawn, pools__layout="replicas", pools__route=route, pools__look_every_ms=look_every_ms)
    place = site({"a": instances}, blocks, COSTLY)
    requests = build(rows, scale, turns=turns, own_cancel=outside[1])
    around = outside[0]._replace(cancels=[(n, at) for n, at in dict(outside[0].cancels).items() if n < len(requests)])
    expected = stepped(spec, place, requests, COSTLY, around, noise)
    assert fast(spec, place, requests, COSTLY, around, noise) == expected


@settings(max_examples=200, deadline=None)
@given(
    drawn=POLICIES,
    rows=REQUESTS,
    turns=st.booleans(),
    outside=OUTSIDE,
    rules=st.tuples(
        st.sampled_from(["cheapest", "transfer", "recompute", "stay"]),
        st.sampled_from(["transfer", "recompute", "stay", "fail"]),
        st.sampled_from(["ready", "arrival"]),
        st.sampled_from([None, 0, 4]),
        st.sampled_from([None, 2.0]),
        st.sampled_from(["round_robin", "least_loaded", "first_token"]),
    ),
    sizes=st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 3)]),
    links=st.tuples(st.sampled_from([0.01, 1.0]), st.booleans(), st.sampled_from([0.0, 0.4])),
    blocks=st.sampled_from([12, 60]),
    scale=SCALES,
    noise=NOISE,
)
def test_separated_pools_do_the_same(
    drawn: Any, rows: Any, turns: bool, outside: Any, rules: Any, sizes: Any, links: Any, blocks: int, scale: float,
    noise: Any,
) -> None:  # fmt: skip
    handoff, broken, reserve, patience_ms, budget_ms, route = rules
    spec = policy(
        drawn, pools__layout="split", pools__prefill=("a",), pools__handoff=handoff, pools__broken=broken,
        pools__reserve=reserve, pools__patience_ms=patience_ms, pools__handoff_budget_ms=budget_ms, pools__route=route,
    )  # fmt: skip
    assume(not why_step_by_step(spec))
    place = site(
        {"a": sizes[0], "b": sizes[1]}, blocks, COSTLY, link_gb_per_s=links[0], link_shared=links[1],
        kv_bytes_per_token=2000, broken_share=links[2], late_share=links[2], late_ms=3,
    )  # fmt: skip
    requests = build(rows, scale, turns=turns, own_cancel=outside[1])
    around = outside[0]._replace(cancels=[(n, at) for n, at in dict(outside[0].cancels).items() if n < len(requests)])
    expected = stepped(spec, place, requests, COSTLY, around, noise)
    assert fast(spec, place, requests, COSTLY, around, noise) == expected


COPIED_WHILE_A_STEP_RUNS = [
    (0, 11, 10, 0, True), (0, 2, 3, 0, True), (0, 17, 3, 0, True), (0, 22, 9, 0, True), (0, 1, 1, 0, True),
    (0, 15, 5, 1, True), (0, 1, 1, 0, False), (0, 1, 1, 0, False), (0, 11, 10, 3, True), (0, 1, 1, 0, False),
]  # fmt: skip
"""A place reserved during a step evicts to the host: the next step carries the copies."""


@example(rows=COPIED_WHILE_A_STEP_RUNS, layout="split", prefix="radix", slots=20, quota=None, scale=0)
@settings(max_examples=80, deadline=None)
@given(
    rows=REQUESTS,
    layout=st.sampled_from(["replicas", "split"]),
    prefix=st.sampled_from(["hash", "radix"]),
    slots=st.sampled_from([0, 3, 20]),
    quota=st.sampled_from([None, 0.6]),
    scale=SCALES,
)
def test_a_host_tier_and_quotas_do_the_same(
    rows: Any, layout: str, prefix: str, slots: int, quota: float | None, scale: float
) -> None:
    pools = {"pools__layout": layout, **({"pools__prefill": ("a",)} if layout == "split" else {})}
    cache = {"cache__prefix": prefix, "cache__host_prefix_blocks": slots, "cache__tenant_quota": quota}
    spec = policy_spec("vllm_v1", batch__size=4, batch__token_budget=24, cache__block_size=4, **pools, **cache)
    place = site({"a": 1, "b": 2} if layout == "split" else {"a": 2}, 14, COSTLY, kv_bytes_per_token=2000)
    requests = build(rows, scale, turns=True, own_cancel=None)
    expected = stepped(spec, place, requests, COSTLY, Outside(), None)
    assert fast(spec, place, requests, COSTLY, Outside(), None) == expected


@pytest.mark.parametrize(
    ("settings_", "reason"),
    [
        ({"execution__overlap": "pipelined"}, "steps overlap (execution.overlap: pipelined)"),
        ({"pools__layout": "replicas", "pools__route": "freest"}, "pools.route: freest"),
        (
            {"pools__layout": "split", "pools__prefill": ("a",), "pools__reserve": "arrival", "pools__move": "chunks"},
            "pools.move: chunks",
        ),
    ],
)
def test_what_cannot_be_played_from_event_to_event_is_said(settings_: Any, reason: str) -> None:
    spec = policy_spec("vllm_v1", **settings_)
    assert why_step_by_step(spec) == reason
    with pytest.raises(CallerError, match="step by step"):
        Fleet(spec, site({"a": 1, "b": 1}, 60, COSTLY), [StepCost(COSTLY)] * 2, lambda row, instance: None)


def test_a_queue_that_gives_up_its_worst_is_played_step_by_step() -> None:
    for by, reason in (("priority", "a full queue gives up its worst request (batch.queue_limit: 3)"), ("arrival", "")):
        assert why_step_by_step(policy_spec("sglang", order__by=by, batch__queue_limit=3)) == reason


def test_requests_dealt_out_in_turn_need_no_look_between_arrivals() -> None:
    """Two instances, eight requests of 4 tokens and 1 ms a step, one every 10 ms: four each, each over after 4 ms."""
    spec = policy_spec("vllm_v1", pools__layout="replicas", pools__route="round_robin")
    plain, rows = profile(), list[tuple[int, int]]()
    fleet = Fleet(
        spec,
        site({"a": 2}, 60, plain),
        [StepCost(plain)] * 2,
        lambda row, instance: rows.append((instance, row.end_ns - row.arrival_ns)),
    )
    report = fleet.run(iter([request(i, 4, 4, at_ms=10 * i) for i in range(8)]))
    assert sorted(rows) == [(0, 4_000_000)] * 4 + [(1, 4_000_000)] * 4
    assert (report.requests, report.steps, report.end_ns, report.preemptions) == (8, 32, 74_000_000, 0)


def test_a_stream_must_not_cancel() -> None:
    spec = policy_spec("vllm_v1", pools__layout="replicas", pools__route="round_robin")
    fleet = Fleet(spec, site({"a": 2}, 60, COSTLY), [StepCost(COSTLY)] * 2, lambda row, instance: None)
    with pytest.raises(CallerError, match="request 0 of a stream cancels"):
        fleet.run(iter([request(0, 4, 4, cancel_ns=5)]))
