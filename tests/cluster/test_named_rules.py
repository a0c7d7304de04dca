"""Rules of named systems between instances, each by its id: every one of them is in the text of a test here."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.cluster.load import Load
from scheduler_core.cluster.prefixes import PrefixIndex
from scheduler_core.cluster.router import Freest
from scheduler_core.policies.presets import Capacity
from scheduler_core.request.spec import RequestSpec
from scheduler_core.sched.moving import Leaving, Reserved
from scheduler_core.testing.builders import Stepper, play_cluster, policy_spec, profile, request
from scheduler_core.types.cluster_records import Handoff, Landed, Migration, Parked, PrefixMoved, Routed, Transferred
from scheduler_core.types.records import Admitted, Finished, Step
from tests.cluster.test_outages import audited

GROUPS = {"decode": 1, "prefill": 1}
RULES = {"V": range(31, 35), "PD": range(1, 8), "DS": range(1, 5), "SW": range(1, 6), "MK": range(1, 6),
         "LX": range(1, 7)}  # fmt: skip


def test_every_rule_has_a_test_that_names_it() -> None:
    """In a docstring or comment of a test; ranges as SW-01 to SW-04 name their ends."""
    text = "\n".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    named = set(re.findall(r"\b(?:V|PD|DS|SW|MK|LX)-\d\d\b", text))
    assert not {f"{system}-{number:02}" for system, numbers in RULES.items() for number in numbers} - named


# --- vLLM with a connector ------------------------------------------------------------------------------------------


def test_what_is_cached_where_it_decodes_is_not_asked_for() -> None:
    """V-31. Of two prompts that begin with the same 64 tokens the first is delivered whole, 80 tokens of 1 kB; of the
    second only the 16 beyond the 4 blocks that the first has left there."""
    spec = policy_spec("vllm_pd", pools__first_token="prefill")
    requests = [request(i, 80, 2, at_ms=50 * i, prefix_blocks=(1, 2, 3, 4, 10 + i)) for i in range(2)]
    _, sink, _ = play_cluster(spec, requests, GROUPS, kv_bytes_per_token=1000)
    assert [record.bytes for record in sink.of(Transferred)] == [80_000, 16_000]


def test_a_delivery_is_taken_only_beside_what_prefills_there() -> None:
    """V-32. 12 blocks of 4, 2 of them computed of a prompt of 40 tokens in chunks of 8, which needs 8 of the 10 free
    ones: 8 tokens may be delivered beside it, in 2 blocks, 20 in 5 may not, and could with nobody there."""
    spec = policy_spec("vllm_v1", cache__block_size=4, batch__token_budget=8)
    stepper = Stepper(spec, Capacity(12, 1000))
    others = [
        RequestSpec(id=number, arrival_ns=0, prompt_tokens=tokens, output_limit=2)
        for number, tokens in enumerate((20, 8), start=1)
    ]
    stepper.submit(0, 40, limit=4)
    assert stepper.step() == {0: 8}
    assert stepper.instance.reserve(Leaving(others[0], 21, 20, 1), 1) is None
    assert isinstance(stepper.instance.reserve(Leaving(others[1], 9, 8, 1), 1), Reserved)
    alone = Stepper(spec, Capacity(12, 1000)).instance
    assert isinstance(alone.reserve(Leaving(others[0], 21, 20, 1), 1), Reserved)


def test_the_producer_keeps_blocks_until_the_send_is_complete() -> None:
    """V-34, DS-03. 100 tokens over 1 MB/s take 100 ms. The prefill pool of 7 blocks holds them until then, so a second
    prompt of 100 is computed only after the first has landed; then its source has freed them."""
    spec = policy_spec("vllm_pd", cache__prefix="none", pools__first_token="prefill")
    requests = [request(0, 100, 4), request(1, 100, 4, at_ms=5)]
    _, sink, _ = play_cluster(
        spec, requests, GROUPS, capacity=Capacity(8, 1000), link_gb_per_s=0.001, link_latency_us=0,
        kv_bytes_per_token=1000,
    )  # fmt: skip
    landed = {record.request: record.at_ns for record in sink.of(Landed)}
    second = next(step for step in sink.of(Step) if step.grants[0][0] == 1)
    assert second.planned_ns >= landed[0] == 101_000_000


# --- SGLang ---------------------------------------------------------------------------------------------------------


def test_chunks_leave_as_they_are_computed_and_a_failed_send_aborts() -> None:
    """PD-02. 64 tokens in two chunks of 32 of 1 ms: the first 32 kB leave at 1 ms, the rest at 2. A send that fails
    ends the request."""
    spec = policy_spec("sglang_pd", batch__token_budget=32, cache__prefix="none")
    for share, outcome in ((0.0, "finished"), (1.0, "failed")):
        _, sink, _ = play_cluster(
            spec, [request(0, 64, 3)], GROUPS, broken_share=share, link_latency_us=0, kv_bytes_per_token=1000
        )
        assert next((record.start_ns, record.bytes) for record in sink.of(Transferred)) == (1_000_000, 32_000)
        assert [record.outcome for record in sink.of(Finished)] == [outcome]


def test_the_first_token_is_known_when_the_state_has_arrived() -> None:
    """PD-06. It is computed by prefill; the first step at the decode instance computes the second."""
    _, sink, _ = play_cluster(policy_spec("sglang_pd"), [request(0, 32, 3)], GROUPS)
    steps = [(step.instance, row[2], row[4]) for step in sink.of(Step) for row in step.grants]
    assert steps == [(1, 0, "prefill"), (0, 32, "decode"), (0, 33, "decode")]


# --- DistServe ------------------------------------------------------------------------------------------------------


def test_what_is_computed_and_not_accepted_counts_against_new_prompts() -> None:
    """DS-01. A prefill pool of 10 blocks of 4 holds two prompts of 16 (4 blocks each and one to come); decode has room
    for one at a time, so the third waits for prefill until the first has left, though nothing is computed there."""
    spec = policy_spec("distserve", cache__block_size=4, pools__accept_share=1.0)
    requests = [request(index, 16, 20) for index in range(3)]
    _, sink, _ = play_cluster(spec, requests, GROUPS, capacity=Capacity(10, 1000))
    first = {row[0]: step.planned_ns for step in reversed(sink.of(Step)) for row in step.grants}
    parked = {record.request: record.at_ns for record in sink.of(Parked)}
    landed = {record.request: record.at_ns for record in sink.of(Landed)}
    assert parked[1] < first[2]
    assert first[2] >= landed[0]


def test_both_sides_go_to_the_least_loaded() -> None:
    """DS-04. Four equal requests at once over two instances on each side: in turn, as each has fewer then."""
    _, sink, _ = play_cluster(
        policy_spec("distserve"), [request(i, 20, 10) for i in range(4)], {"decode": 2, "prefill": 2}
    )
    assert [record.instance for record in sink.of(Routed)] == [2, 3, 2, 3]
    assert sorted(record.destination for record in sink.of(Handoff)) == [0, 0, 1, 1]


# --- Mooncake -------------------------------------------------------------------------------------------------------


LINK: dict[str, Any] = {"link_gb_per_s": 0.01, "link_latency_us": 0, "kv_bytes_per_token": 1000}  # 10 tokens a ms


def fetching(gap_ms: float, **options: Any) -> tuple[Any, Any]:
    """1 ms a prompt token. A prompt of 160 tokens; ``gap_ms`` after it 400 others at once; a ms later, one that begins
    with 144 of those 160."""
    spec = policy_spec(
        "vllm_v1", pools__layout="replicas", pools__route="first_token", pools__prefix_fetch_ratio=2,
        pools__notice_ms=20, batch__token_budget=4096, **options,
    )  # fmt: skip
    known: dict[str, Any] = {"prefix_blocks": tuple(range(1, 10))}
    requests = [
        request(0, 160, 1, **known),
        request(1, 400, 1, at_ms=gap_ms),
        request(2, 160, 1, at_ms=gap_ms + 1, **known),
        request(3, 160, 1, at_ms=gap_ms + 600, **known),
    ]
    _, sink, cluster = play_cluster(spec, requests, {"a": 2}, target=profile(base_ms=0, prefill_token_ms=1), **LINK)
    return sink, cluster


def test_a_beginning_that_another_has_is_fetched_where_that_is_sooner_and_stays() -> None:
    """MK-01, MK-02, MK-04. At 201 ms request 2 finds 399 ms of queue before its 16 tokens at instance 0, which knows
    144 of it. At 1, with nothing to do, the way of 144 kB takes 14.4 ms, and then it computes 16: it goes there, has
    its KV at 215.4, and its token at 231.4. It stays cached: request 3 finds it there as well as at 0."""
    sink, cluster = fetching(200)
    assert [record.instance for record in sink.of(Routed)][:3] == [0, 0, 1]
    moved = [(r.at_ns, r.request, r.source, r.destination, r.action, r.tokens, r.bytes) for r in sink.of(PrefixMoved)]
    assert moved == [
        (201_000_000, 2, 0, 1, "leaves", 144, 144_000),
        (215_400_000, 2, 0, 1, "arrives", 144, 144_000),
    ]
    admitted = {record.request: record for record in sink.of(Admitted)}
    assert (admitted[2].at_ns, admitted[2].hit_tokens, admitted[3].hit_tokens) == (215_400_000, 144, 144)
    assert {r.request: r.at_ns for r in sink.of(Finished)}[2] == 231_400_000
    summary = audited(sink, cluster, 4, 1000)
    assert summary.metrics["prefixes_fetched"].value == 1
    assert summary.metrics["prefix_fetch_ms"].value == pytest.approx(14.4)
    assert summary.metrics["prefix_fetch_bytes"].value == 144_000


def test_what_is_not_computed_yet_cannot_be_fetched() -> None:
    """MK-04. The router sent the beginning to 0 a moment ago, where it is not computed: 2 computes all of its own."""
    sink, cluster = fetching(1)
    assert not sink.of(PrefixMoved)
    audited(sink, cluster, 4, 1000)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 8), st.integers(0, 60), st.integers(0, 2)), min_size=4,
             max_size=24),
    st.sampled_from(["replicas", "split"]),
    st.sampled_from(["ready", "arrival"]),
    st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(1, 60)), max_size=1),
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 60)), max_size=4),
)  # fmt: skip
def test_nobody_is_lost_while_beginnings_move(rows: Any, layout: str, reserve: str, deaths: Any, cancels: Any) -> None:
    """MK-04 with deaths of either side and aborts at any moment: each ends once, and no guest is left."""
    requests = [
        request(i, 4 * blocks + 1, output, at_ms=at, prefix_blocks=tuple(100 * group + k for k in range(blocks)))
        for i, (blocks, output, at, group) in enumerate(rows)
    ]
    options = {} if layout == "replicas" else {"pools__prefill": ("a",), "pools__reserve": reserve}
    spec = policy_spec(
        "vllm_v1", pools__layout=layout, pools__route="first_token", pools__prefix_fetch_ratio=1, pools__notice_ms=5,
        cache__block_size=4, **options,
    )  # fmt: skip
    _, sink, cluster = play_cluster(
        spec,
        requests,
        {"a": 3, "b": 1},
        capacity=Capacity(40, 400),
        target=profile(base_ms=0.5, prefill_token_ms=0.5),
        cancels=[(index, at * 1_000_000) for index, at in cancels if index < len(rows)],
        outages=[{"at_s": at / 1e3, "group": group, "number": 0} for group, at in deaths],
        **LINK,
    )
    assert sorted(record.request for record in sink.of(Finished)) == list(range(len(requests)))
    assert [member.instance.occupancy().kv_used for member in cluster.members] == [0] * 4
    audited(sink, cluster, len(requests), 40)


def test_an_index_knows_full_blocks_up_to_the_first_miss() -> None:
    """MK-05. Blocks 1 to 3 went to instance 0, 1 and 3 to instance 1: of 1, 2, 3 instance 0 has all, 1 the first."""
    index = PrefixIndex(2, capacity=10)
    for instance, blocks in ((0, (1, 2, 3)), (1, (1, 9)), (1, (3,))):
        index.sent(_spec(blocks), instance)
    assert index.matches(_spec((1, 2, 3))) == {0: 48, 1: 16}
    assert index.matches(_spec((7, 2, 3))) == {}


def _spec(blocks: tuple[int, ...]) -> RequestSpec:
    size = 16 * len(blocks)
    return RequestSpec(id=1, arrival_ns=0, prompt_tokens=size, output_limit=1, prefix_blocks=blocks)


# --- Llumnix --------------------------------------------------------------------------------------------------------


def test_freeness_counts_waiting_demand_and_headroom_of_the_urgent() -> None:
    """LX-02, LX-03. Of 1,000 KV tokens 200 held or waited for by two requests leave 400 each; 300 by one leave 700. An
    urgent one among these takes 400 more as headroom: 300 are left, and the other instance is freer."""
    loads = [Load(), Load()]
    for load, held in zip(loads, ((100, 100), (300,)), strict=True):
        for tokens in held:
            load.count(tokens, 0, 1)
    asked = _spec((1,))
    assert Freest([1000, 1000], 400).pick(asked, (0, 1), loads) == (1, -700, -400)
    loads[1].urgent = 1
    assert Freest([1000, 1000], 400).pick(asked, (0, 1), loads) == (0, -400, -300)
    assert Freest([1000, 1000]).pick(asked, (0, 1), loads).instance == 1


def migrated(pick: str, headroom: int | None = None, priority: int = 0) -> Any:
    """Requests of 300 (of that priority), 100 and 200 tokens at instance 0, which holds 1,008; 1 has nothing."""
    options = {} if headroom is None else {"pools__urgent_headroom_tokens": headroom}
    spec = policy_spec(
        "vllm_v1", pools__layout="replicas", pools__route="sticky", cache__prefix="none", batch__token_budget=4096,
        pools__migrate={"every_ms": 10, "above": 0.5, "pick": pick}, **options,
    )  # fmt: skip
    requests = [
        request(i, prompt, 60, session=7, priority=priority if i == 0 else 0)
        for i, prompt in enumerate((300, 100, 200))
    ]
    _, sink, _ = play_cluster(spec, requests, {"a": 2}, capacity=Capacity(63, 4096), kv_bytes_per_token=1000)
    return [record for record in sink.of(Migration) if record.action == "started"]


@pytest.mark.parametrize(("pick", "first"), [("shortest", 1), ("longest", 0), ("last", 2)])
def test_which_request_migrates(pick: str, first: int) -> None:
    """LX-05, LX-01. 600 of 1,008 tokens are above half: the shortest goes by default, or the longest, or the last."""
    assert migrated(pick)[0].request == first


def test_an_urgent_request_is_given_room_by_others_moving_away() -> None:
    """LX-02, LX-04. 600 tokens and some of 1,008 are above half, which one of 100 that goes brings to less; with 600 of
    headroom for the urgent one it stays above, and the next goes, too."""
    assert len(migrated("shortest", 600, priority=-1)) > len(migrated("shortest", 600))
