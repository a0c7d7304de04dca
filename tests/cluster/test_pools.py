"""Separated pools that grow, shrink and give each other instances; tiers with instances of their own."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.policies.layouts import layout_problems
from scheduler_core.policies.presets import Capacity
from scheduler_core.policies.resolving import resolve, resolve_arms
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.parse import parse
from scheduler_core.spec.topology import Topology
from scheduler_core.testing.builders import play_cluster, policy_spec, profile, request
from scheduler_core.testing.conformance import TARGET
from scheduler_core.types.cluster_records import Landed, Overflowed, PoolChanged, Routed, Scaled
from scheduler_core.types.errors import InputError
from scheduler_core.types.records import Finished, Step
from scheduler_core.types.time import NS_PER_S
from tests.cluster.test_outages import audited

COLD = {"place_s": 1, "image_s": 0, "weights_s": 2, "graphs_s": 0}
RULES = {"least": 1, "up_at": 4, "down_at": 1, "window_s": 2, "every_s": 1, "cooldown_s": 5}


def split(**settings_: Any) -> Any:
    """Group ``p`` computes prompts, ``d`` decodes; instances of ``d`` come first."""
    return policy_spec("vllm_v1", pools__layout="split", pools__prefill=("p",), cache__prefix="none", **settings_)


def powers(sink: Any) -> list[tuple[float, int, str]]:
    """(seconds, instance, power) of each change after the start."""
    return [(r.at_ns / NS_PER_S, r.instance, r.power) for r in sink.of(Scaled) if r.at_ns]


def pool_changes(sink: Any) -> list[tuple[float, int, str]]:
    """(seconds, instance, pool) of each change."""
    return [(r.at_ns / NS_PER_S, r.instance, r.pool) for r in sink.of(PoolChanged)]


# --- scaling --------------------------------------------------------------------------------------------------------


def test_each_pool_starts_what_it_misses_itself() -> None:
    """Twelve prompts at once, 100 ms a step; prefill takes one a step, decode two at a time for 100 steps each.

    Prefill (instances 2 and 3) has 12 open at 0 and is never above 4 for two seconds: one more is over each 100 ms.
    Decode (0 and 1) has 9 at second 1, 12 at 2 and 3, above 4: 12 / 4 asks for three, one more exists; it is on 3 s
    later.
    """
    requests = [request(i, 4, 100) for i in range(12)]
    spec = split(
        pools__scale_decode=RULES,
        pools__scale_prefill=RULES,
        batch__size=2,
        batch__token_budget=4,
        batch__queue_limit=0,
    )
    _, sink, cluster = play_cluster(spec, requests, {"d": 2, "p": 2}, target=profile(base_ms=100), cold_start=COLD)
    assert powers(sink)[:2] == [(3, 1, "starting"), (6, 1, "on")]
    assert not [change for change in powers(sink) if change[1] == 3]
    assert {r.instance for r in sink.of(Landed) if r.at_ns < 6 * NS_PER_S} == {0}
    audited(sink, cluster, 12, 1000)


def test_prefill_is_scaled_by_how_long_prompts_wait() -> None:
    """1 ms a prompt token: 40 prompts of 100 at once are 4,000 ms of waiting, 3,000 at second 1 and 2,000 at second 2
    (before the step that ends then), always above 500 for two seconds at 3: 1,000 left for a bound of 500 asks for two.
    """
    rules = {**RULES, "by": "wait", "up_at": 500, "down_at": 10}
    requests = [request(i, 100, 1) for i in range(40)]
    spec = split(pools__scale_prefill=rules, batch__token_budget=100)
    costs = profile(base_ms=0, prefill_token_ms=1)
    _, sink, _ = play_cluster(spec, requests, {"d": 1, "p": 4}, target=costs, cold_start=COLD)
    assert powers(sink)[0] == (3, 2, "starting")
    (first, *_) = [r for r in sink.of(Scaled) if r.power == "starting"]
    assert first.reason == "pressure 1.1e+03 over 500"


# --- the ratio ------------------------------------------------------------------------------------------------------


def balanced(**rules: Any) -> Any:
    given_ = {"prefill_wait_ms": 500, "decode_kv_share": 0.5, "window_s": 1, "every_s": 0.5, "cooldown_s": 3, **rules}
    return split(pools__rebalance=given_, batch__token_budget=100, cache__block_size=4, batch__size=64)


def test_an_idle_decoder_becomes_a_prefiller_once_it_is_empty() -> None:
    """1 ms a prompt token, two of three decode instances with nothing to do: 60 prompts of 100 and one answer of 30.

    At 0.5 s 5,600 ms wait for one instance that prefills, above 500, and decode holds next to nothing: short for a
    whole window at 1.5 s. Instance 2, the last of those with the fewest requests, leaves and is empty at once. Then
    2,300 ms wait at each of two: instance 1 follows a second later, and decode keeps the one it must have.
    """
    requests = [request(i, 100, 1) for i in range(60)]
    costs = profile(base_ms=0, prefill_token_ms=1)
    _, sink, cluster = play_cluster(balanced(), requests, {"d": 3, "p": 1}, target=costs)
    assert pool_changes(sink)[:2] == [(1.5, 2, "leaving"), (1.6, 2, "prefill")]
    assert [change[1:] for change in pool_changes(sink)] == [
        (2, "leaving"),
        (2, "prefill"),
        (1, "leaving"),
        (1, "prefill"),
    ]
    summary = audited(sink, cluster, 60, 1000)
    assert summary.metrics["pool_moves"].value == 2
    assert summary.metrics["pool_reversals"].value == 0


def test_a_prefiller_helps_out_where_answers_fill_the_pool_and_never_mixes() -> None:
    """Long answers to short prompts: decode holds more than half of its 200 tokens, prefill waits for nothing.

    No step of any instance holds a prompt of one request beside a decode of another (M4), also while it changes pools.
    """
    requests = [request(i, 20, 60, at_ms=20 * i) for i in range(30)]
    spec = balanced(window_s=0.1, every_s=0.05)
    _, sink, cluster = play_cluster(
        spec, requests, {"d": 1, "p": 2}, target=profile(base_ms=5), capacity=Capacity(100, 1000)
    )
    assert [change[1:] for change in pool_changes(sink)][:2] == [(2, "leaving"), (2, "decode")]
    for step in sink.of(Step):
        assert not {"prefill", "decode"} <= {row[4] for row in step.grants}, step
    audited(sink, cluster, 30, 100)


def reversals(cooldown_s: float, window_s: float) -> float | None:
    """Moves against the one before, under a load that alternates each second between long answers and long prompts."""
    requests = [request(i, *((90, 2) if i // 20 % 2 else (4, 60)), at_ms=50 * i) for i in range(160)]
    spec = balanced(cooldown_s=cooldown_s, window_s=window_s, every_s=0.1, prefill_wait_ms=100, decode_kv_share=0.3)
    costs = profile(base_ms=2, prefill_token_ms=1.6, decode_request_ms=0.3)
    _, sink, cluster = play_cluster(
        spec, requests, {"d": 2, "p": 2}, target=costs, capacity=Capacity(60, 1000), law_interval=50
    )
    found: float | None = audited(sink, cluster, 160, 60).metrics["pool_reversals"].value
    return found


def test_hysteresis_stops_oscillation() -> None:
    """Eight seconds of it: in haste the ratio follows every second, there and back six times after the first move. With
    a cool-down longer than that it moves once; with a window longer than a second, never."""
    assert reversals(cooldown_s=0, window_s=0.1) == 6
    assert reversals(cooldown_s=20, window_s=0.1) == 0
    assert reversals(cooldown_s=0, window_s=1.5) is None


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 90), st.integers(1, 40), st.integers(0, 400)), min_size=1, max_size=30),
    st.sampled_from(["scale", "rebalance", "rebalance+migrate"]),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.sampled_from(["before", "arrival", "ready"]),
    st.lists(st.tuples(st.sampled_from(["p", "d"]), st.integers(5, 200)), max_size=1),
)
def test_nobody_is_lost_while_pools_change(
    rows: Any, what: str, counts: tuple[int, int], reserve: str, deaths: Any
) -> None:
    """Whatever grows, shrinks, moves or dies: each request ends once, and a step is of one phase."""
    requests = [request(i, prompt, output, at_ms=at) for i, (prompt, output, at) in enumerate(rows)]
    hasty = {"window_s": 0.01, "every_s": 0.005, "cooldown_s": 0.01}
    options: dict[str, Any] = {"pools__reserve": reserve, "pools__notice_ms": 10, "pools__broken": "transfer"}
    if what == "scale":
        rules = {**hasty, "up_at": 2, "down_at": 1}
        options |= {"pools__scale_prefill": rules, "pools__scale_decode": rules}
    else:
        options["pools__rebalance"] = {**hasty, "prefill_wait_ms": 3, "decode_kv_share": 0.2}
    if what.endswith("migrate"):
        options["pools__migrate"] = {"every_ms": 5, "above": 0.3, "last_blocks": 1}
    _, sink, cluster = play_cluster(
        split(cache__block_size=4, **options),
        requests,
        {"p": counts[0], "d": counts[1]},
        capacity=Capacity(60, 400),
        target=TARGET,
        outages=[{"at_s": at / 1e3, "group": group, "number": 0} for group, at in deaths],
        kv_bytes_per_token=20_000,
        link_gb_per_s=0.5,
        cold_start={"place_s": 0.01, "image_s": 0, "weights_s": 0, "graphs_s": 0},
    )
    assert sorted(record.request for record in sink.of(Finished)) == list(range(len(requests)))
    assert not cluster.open_requests()
    audited(sink, cluster, len(requests), 60)


# --- tiers ----------------------------------------------------------------------------------------------------------


def isolated(**tiers: Any) -> Any:
    return policy_spec("vllm_v1", pools__layout="replicas", pools__tiers=tiers, batch__size=1)


def test_a_tier_goes_to_its_own_and_beyond_only_where_that_is_declared() -> None:
    """1 ms a step; instances 0 and 1 are anybody's, 2 is gold's. Four gold and four other requests at once.

    Without overflow all gold ones go to 2. With overflow at 2 requests the first two go there, and the next ones to the
    least loaded of all: 0 and 1, which have none yet.
    """
    requests = [request(i, 4, 5, tier="gold") for i in range(4)] + [request(4 + i, 4, 5) for i in range(4)]
    groups = {"any": 2, "gold": 1}
    _, alone, cluster = play_cluster(isolated(gold={"groups": "gold"}), requests, groups)
    assert [record.instance for record in alone.of(Routed)] == [2, 2, 2, 2, 0, 1, 0, 1]
    assert not alone.of(Overflowed)
    audited(alone, cluster, 8, 1000)
    helped = isolated(gold={"groups": "gold", "overflow": "any", "overflow_at": 2})
    _, sink, cluster = play_cluster(helped, requests, groups)
    assert [record.instance for record in sink.of(Routed)] == [2, 2, 0, 1, 0, 1, 0, 1]
    assert [(record.request, record.instance) for record in sink.of(Overflowed)] == [(2, 0), (3, 1)]


def test_separated_pools_keep_tiers_apart_on_both_sides() -> None:
    """Prompts and answers of gold are computed by its own two instances, those of others by theirs."""
    groups = {"d_any": 1, "d_gold": 1, "p_any": 1, "p_gold": 1}
    spec = policy_spec(
        "vllm_v1",
        pools__layout="split",
        pools__prefill=("p_any", "p_gold"),
        pools__tiers={"gold": {"groups": "p_gold+d_gold"}},
    )
    requests = [request(i, 20, 5, tier="gold" if i % 2 else "other") for i in range(8)]
    _, sink, _ = play_cluster(spec, requests, groups)
    for step in sink.of(Step):
        assert {row[0] % 2 for row in step.grants} == {step.instance % 2}, step


def test_without_instances_of_its_own_a_tier_waits_for_nobody_elses() -> None:
    """Gold's only instance dies: its requests fail, because nobody else may take them; those of others go on."""
    requests = [request(i, 4, 5, at_ms=20, tier="gold" if i % 2 else "other") for i in range(6)]
    outage = [{"at_s": 0.005, "group": "gold", "number": 0}]
    spec = isolated(gold={"groups": "gold"}).model_copy()
    _, sink, _ = play_cluster(spec, requests, {"any": 1, "gold": 1}, outages=outage)
    late = play_cluster(spec, [request(0, 4, 5, at_ms=2000, tier="gold")], {"any": 1, "gold": 1}, outages=outage)[1]
    assert {r.request: r.outcome for r in sink.of(Finished) if r.request % 2 == 0} == dict.fromkeys(
        (0, 2, 4), "finished"
    )
    (ended,) = late.of(Finished)
    assert (ended.outcome, ended.stage, ended.reason) == ("failed", "route", "no_instance")


# --- what does not go together --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pools", "where", "message"),
    [
        ({"layout": "replicas", "scale_decode": {}}, "pools.scale_decode", "but the layout is replicas"),
        ({"layout": "split", "prefill": "p", "scale": {}}, "pools.scale", "but the layout is split"),
        ({"layout": "replicas", "borrow_tokens": 9}, "pools.borrow_tokens", "but the layout is replicas"),
        (
            {"layout": "split", "prefill": "p", "scale_prefill": {"least": 3}},
            "pools.scale_prefill.least",
            "is 3, but the prefill pool has 2 instances",
        ),
        (
            {"layout": "split", "prefill": "p", "scale_decode": {"by": "wait"}},
            "pools.scale_decode.by",
            "decode instances have none",
        ),
        (
            {"layout": "replicas", "scale": {"least": 3}, "tiers": {"a": {"groups": "d"}}},
            "pools.scale.least",
            "is 3, but the target has 2 instances for other tiers",
        ),
        ({"layout": "replicas", "tiers": {"a": {"groups": "x"}}}, "pools.tiers.a.groups", "no group 'x'"),
        (
            {"layout": "replicas", "tiers": {"a": {"groups": "p"}, "b": {"groups": "p"}}},
            "pools.tiers.b.groups",
            "p is another tier's own already: 'a'",
        ),
        (
            {"layout": "split", "prefill": "p", "tiers": {"a": {"groups": "d"}}},
            "pools.tiers.a.groups",
            "one group that prefills and one that decodes",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(pools: Any, where: str, message: str) -> None:
    topology = parse(Topology, {"groups": {"d": {"count": 2}, "p": {"count": 2}}})
    full = resolve(policy_spec("vllm_v1", **{f"pools__{name}": value for name, value in pools.items()}))
    problems = {problem.where: problem.message for problem in layout_problems(full.pools, topology)}
    assert message in problems[where]


def test_a_tier_of_the_workload_that_is_left_without_an_instance_is_refused() -> None:
    data = {
        "name": "tiers",
        "workload": {
            "requests": 10,
            "profile": "azure-2023-conv",
            "rate_rps": 10,
            "tiers": {"gold": {"share": 0.5}, "other": {"share": 0.5}},
        },
        "target": {"modelled": {"profile": "any", "topology": {"groups": {"a": {"count": 2}}}}},
        "arms": {
            "shared": {"policy": "vllm_v1", "pools": {"layout": "replicas"}},
            "apart": {"policy": "vllm_v1", "pools": {"layout": "replicas", "tiers": {"gold": {"groups": "a"}}}},
        },
    }
    with pytest.raises(InputError, match=r"arms\.apart\.pools\.tiers: leave no instance for tier 'other'"):
        resolve_arms(parse(ExperimentSpec, data), None)
