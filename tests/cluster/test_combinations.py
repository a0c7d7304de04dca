"""Settings of pools together: whatever is drawn, each request ends once, nothing leaks, tiers keep to their ground."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.cluster.borrowing import Borrowing
from scheduler_core.cluster.pools import Pool, Pools
from scheduler_core.cluster.router import FewestTokens
from scheduler_core.policies.layouts import layout_problems
from scheduler_core.policies.presets import Capacity
from scheduler_core.policies.resolving import resolve
from scheduler_core.spec.parse import parse
from scheduler_core.spec.topology import Topology
from scheduler_core.testing.builders import play_cluster, policy_spec, profile, request
from scheduler_core.testing.conformance import TARGET
from scheduler_core.types.cluster_records import Handoff, Migration, Overflowed, PoolChanged, Reassigned, Scaled
from scheduler_core.types.records import Finished, Step
from scheduler_core.types.time import NS_PER_S
from tests.cluster.test_outages import audited

HASTY = {"window_s": 0.01, "every_s": 0.005, "cooldown_s": 0.01}
SCALE = {**HASTY, "up_at": 2, "down_at": 1}
COLD = {"place_s": 0.01, "image_s": 0.002, "weights_s": 0.003, "graphs_s": 0}
MEANS: dict[str, dict[str, Any]] = {
    "scale": {"scale": SCALE},
    "scale_prefill": {"scale_prefill": SCALE},
    "scale_decode": {"scale_decode": SCALE},
    "rebalance": {"rebalance": {**HASTY, "prefill_wait_ms": 3, "decode_kv_share": 0.2}},
    "borrow": {"borrow_tokens": 60},
    "transfer": {"transfer": {"wait_ms": 5, "window_s": 0.01, "every_s": 0.005}},
    "migrate": {"migrate": {"every_ms": 5, "above": 0.3, "last_blocks": 1}},
    "refuse": {"refuse": "promise"},
    "fetch": {"route": "first_token", "prefix_fetch_ratio": 1},
}
OF_REPLICAS = ("scale", "transfer", "migrate", "refuse", "fetch")
OF_SPLIT = ("scale_prefill", "scale_decode", "rebalance", "borrow", "transfer", "migrate", "refuse", "fetch")
ROWS = st.lists(
    st.tuples(st.integers(1, 90), st.integers(1, 40), st.integers(0, 80), st.booleans()), min_size=8, max_size=40
)


def drawn(names: Any) -> Any:
    """Some of the means named."""
    return st.lists(st.sampled_from(names), unique=True, max_size=len(names))


def tiers(overflow: float | None, gold: str, other: str) -> dict[str, Any]:
    ground: dict[str, Any] = {"groups": gold}
    if overflow is not None:
        ground |= {"overflow": other, "overflow_at": overflow}
    return {"gold": ground}


def _beginning(prompt: int, group: int) -> tuple[int, ...]:
    """Whole blocks of a beginning that a group's prompts share."""
    return tuple(1 + 100 * group + number for number in range(prompt // 16))


def settle_all(
    rows: Any, groups: dict[str, int], options: dict[str, Any], deaths: Any, faults: float
) -> tuple[Any, Any, list[Any]]:
    """Play it all; what must hold of any of it."""
    requests = [
        request(i, prompt, output, at_ms=at, tier="gold" if gold else "other", prefix_blocks=_beginning(prompt, gold))
        for i, (prompt, output, at, gold) in enumerate(rows)
    ]
    spec = policy_spec(
        "vllm_v1",
        cache__block_size=4,
        pools__notice_ms=10,
        **{f"pools__{name}": value for name, value in options.items()},
    )
    topology = parse(Topology, {"groups": {name: {"count": count} for name, count in groups.items()}})
    assert not list(layout_problems(resolve(spec).pools, topology))
    _, sink, cluster = play_cluster(
        spec,
        requests,
        groups,
        capacity=Capacity(60, 400),
        target=TARGET,
        outages=[{"at_s": at / 1e3, "group": group, "number": 0} for group, at in deaths if group in groups],
        kv_bytes_per_token=20_000,
        link_gb_per_s=0.5,
        cold_start=COLD,
        cancels=[(i, row[2] * 1_000_000 + 7_000_000) for i, row in enumerate(rows) if row[0] % 10 == 7],
        broken_share=faults,
        late_share=faults,
        late_ms=5,
    )
    assert sorted(record.request for record in sink.of(Finished)) == list(range(len(requests)))
    assert not cluster.open_requests()
    assert [member.instance.occupancy().kv_used for member in cluster.members] == [0] * len(cluster.members)
    audited(sink, cluster, len(requests), 60, spec, cold_start=COLD)
    return sink, cluster, requests


def keeps_apart(sink: Any, cluster: Any, requests: list[Any]) -> None:
    """Without overflow a tier's requests run on its own instances and on no other's."""
    own = {index for index, member in enumerate(cluster.members) if member.group.endswith("gold")}
    for step in sink.of(Step):
        for row in step.grants:
            assert (requests[row[0]].tier == "gold") == (step.instance in own), step
    assert not sink.of(Overflowed)


@settings(max_examples=60, deadline=None)
@given(
    ROWS,
    drawn(OF_REPLICAS),
    st.sampled_from(["none", "apart", 2.0]),
    st.sampled_from(["least_loaded", "freest", "first_token"]),
    st.lists(st.tuples(st.sampled_from(["any", "gold"]), st.integers(5, 200)), max_size=1),
    st.sampled_from([0, 20]),
)
def test_replicas_lose_nobody(rows: Any, means: Any, apart: Any, route: str, deaths: Any, look_ms: float) -> None:
    options: dict[str, Any] = {"layout": "replicas", "route": route, "look_every_ms": look_ms}
    for name in means:
        options |= MEANS[name]
    if apart != "none":
        options["tiers"] = tiers(None if apart == "apart" else apart, "gold", "any")
    sink, cluster, requests = settle_all(rows, {"any": 3, "gold": 2}, options, deaths, 0.0)
    if apart == "apart":
        keeps_apart(sink, cluster, requests)


@settings(max_examples=120, deadline=None)
@given(
    ROWS,
    drawn(OF_SPLIT),
    st.sampled_from(["none", "apart", 2.0]),
    st.sampled_from(["before", "arrival", "ready"]),
    st.lists(st.tuples(st.sampled_from(["d_any", "d_gold", "p_any", "p_gold"]), st.integers(5, 200)), max_size=1),
    st.sampled_from([0.0, 0.3]),
)
def test_separated_pools_lose_nobody(
    rows: Any, means: Any, apart: Any, reserve: str, deaths: Any, faults: float
) -> None:
    if "fetch" in means and reserve == "before":
        reserve = "arrival"  # both would hold a prompt back
    options: dict[str, Any] = {
        "layout": "split", "prefill": ("p_any", "p_gold"), "reserve": reserve, "broken": "transfer"
    }  # fmt: skip
    for name in means:
        options |= MEANS[name]
    if apart != "none":
        options["tiers"] = tiers(None if apart == "apart" else apart, "p_gold+d_gold", "p_any+d_any")
    groups = {"d_any": 2, "d_gold": 2, "p_any": 2, "p_gold": 1}
    sink, cluster, requests = settle_all(rows, groups, options, deaths, faults)
    if apart == "apart":
        keeps_apart(sink, cluster, requests)
    if "borrow" not in means and not deaths:
        for step in sink.of(Step):
            assert not {"prefill", "decode"} <= {row[4] for row in step.grants}, step


@settings(max_examples=40, deadline=None)
@given(ROWS, st.sampled_from(["before", "arrival"]), st.integers(5, 200))
def test_a_prompt_may_be_taken_to_where_its_place_to_decode_is(rows: Any, reserve: str, dies_ms: int) -> None:
    """A mixed instance keeps a place for an answer, and is sent the prompt of it as well: one request, not two."""
    options: dict[str, Any] = {
        "layout": "split", "prefill": ("p_any", "p_gold"), "reserve": reserve, "broken": "transfer"
    }  # fmt: skip
    options |= MEANS["borrow"] | MEANS["transfer"]
    settle_all(rows, {"d_any": 1, "p_any": 2, "p_gold": 1}, options, [("d_any", dies_ms)], 0.0)


# --- what a combination means -------------------------------------------------------------------------------------

SLOW = profile(base_ms=100)
STEADY = {"least": 1, "up_at": 4, "down_at": 1, "window_s": 2, "every_s": 1, "cooldown_s": 5}


def replicas(**pools: Any) -> Any:
    options = {f"pools__{name}": value for name, value in pools.items()}
    return policy_spec("vllm_v1", pools__layout="replicas", cache__prefix="none", batch__size=2, **options)


def test_each_tier_scales_by_itself() -> None:
    """Ten requests of gold at once, 100 ms a step: 10 / 4 asks for three of gold's three instances (2 to 4) after two
    seconds above 4, which take 3 s to start. Those of the other tiers (0 and 1) have nothing, and start nothing."""
    spec = replicas(scale=STEADY, tiers={"gold": {"groups": "gold"}})
    requests = [request(i, 4, 100, tier="gold") for i in range(10)]
    cold = {"place_s": 1, "image_s": 0, "weights_s": 2, "graphs_s": 0}
    _, sink, cluster = play_cluster(spec, requests, {"any": 2, "gold": 3}, target=SLOW, cold_start=cold)
    said = [(record.at_ns / NS_PER_S, record.instance, record.power) for record in sink.of(Scaled)]
    assert sorted(said[:5]) == [(0, 0, "on"), (0, 1, "off"), (0, 2, "on"), (0, 3, "off"), (0, 4, "off")]
    assert said[5:9] == [(3, 3, "starting"), (3, 4, "starting"), (6, 3, "on"), (6, 4, "on")]
    assert {member for at, member, _ in said if at} == {3, 4}
    audited(sink, cluster, 10, 1000)


def test_requests_migrate_among_the_instances_of_their_tier() -> None:
    """All of gold's sessions are at instance 2; 0 and 1 are as empty as 3, and only 3 is gold's."""
    spec = replicas(
        route="sticky", tiers={"gold": {"groups": "gold"}}, migrate={"every_ms": 5, "above": 0.3, "last_blocks": 1}
    )
    spec = spec.model_copy(update={"batch": spec.batch.model_copy(update={"size": 64})})
    requests = [request(i, 40, 60, tier="gold", session=7) for i in range(8)]
    _, sink, _ = play_cluster(spec, requests, {"any": 2, "gold": 2}, capacity=Capacity(60, 1000), link_gb_per_s=1)
    assert {(record.source, record.destination) for record in sink.of(Migration)} == {(2, 3)}


def test_the_rest_of_a_pool_stays_though_another_is_short() -> None:
    """Prefill is short and decode has nothing to do: two of three decode instances move. Where two are always to be on
    (and the third is off, as nothing asks for it) none can be spared."""
    rules = {"prefill_wait_ms": 500, "decode_kv_share": 0.5, "window_s": 1, "every_s": 0.5, "cooldown_s": 3}
    for scaling, moves in (({}, 2), ({"pools__scale_decode": {**STEADY, "least": 2}}, 0)):
        spec = policy_spec(
            "vllm_v1", pools__layout="split", pools__prefill=("p",), pools__rebalance=rules, batch__token_budget=100,
            batch__size=64, **scaling,
        )  # fmt: skip
        requests = [request(i, 100, 1) for i in range(60)]
        costs = profile(base_ms=0, prefill_token_ms=1)
        _, sink, _ = play_cluster(spec, requests, {"d": 3, "p": 1}, target=costs)
        assert len([record for record in sink.of(PoolChanged) if record.pool == "prefill"]) == moves


def test_who_is_taken_elsewhere_is_decoded_where_that_was_chosen() -> None:
    """Six prompts of a session wait at instance 2, each with a decode instance chosen on arrival; the last in line go
    to 3, and all are decoded where they would have been."""
    decoders = []
    for transfer in ({}, {"pools__transfer": {"wait_ms": 250, "window_s": 0.2, "every_s": 0.1}}):
        spec = policy_spec(
            "vllm_v1", pools__layout="split", pools__prefill=("p",), pools__route="sticky", pools__borrow_tokens=9999,
            batch__size=1, cache__prefix="none", **transfer,
        )  # fmt: skip
        requests = [request(i, 100, 3, session=7) for i in range(6)]
        costs = profile(base_ms=0, prefill_token_ms=1, decode_request_ms=1)
        _, sink, cluster = play_cluster(spec, requests, {"d": 2, "p": 2}, target=costs)
        decoders.append({record.request: record.destination for record in sink.of(Handoff)})
        assert bool(sink.of(Reassigned)) == bool(transfer)
        audited(sink, cluster, 6, 1000)
    assert decoders[0] == decoders[1]
    assert set(decoders[0].values()) == {0, 1}


def test_a_tier_borrows_of_its_own() -> None:
    """Gold has one instance to prefill (3) and one to decode (1); more prompts than its queue may hold borrow 1, then
    both phases run on the least loaded of these two; never 0 or 2, which are idle."""
    spec = policy_spec(
        "splitwise", pools__prefill=("p_any", "p_gold"), pools__borrow_tokens=100,
        pools__tiers={"gold": {"groups": "p_gold+d_gold"}},
    )  # fmt: skip
    requests = [request(i, 60, 3, tier="gold") for i in range(4)]
    groups = {"d_any": 1, "d_gold": 1, "p_any": 1, "p_gold": 1}
    _, sink, cluster = play_cluster(spec, requests, groups, target=profile(base_ms=10))
    assert {record.instance for record in sink.of(PoolChanged)} == {1, 3}
    assert {step.instance for step in sink.of(Step)} == {1, 3}
    audited(sink, cluster, 4, 1000)


def test_who_moved_and_was_lent_goes_home_to_its_new_pool() -> None:
    pools = Pools([Pool.DECODE, Pool.DECODE, Pool.PREFILL])
    pools.move(0, Pool.PREFILL, "empty", 1)
    pools.change(0, Pool.MIXED, "lent", 2)
    assert Borrowing(pools, FewestTokens(), [100] * 3, 10).settle(lambda member: True, 3)
    assert pools[0] is Pool.PREFILL
    assert pools.at_home(Pool.PREFILL, {0, 1, 2}) == (0, 2)
