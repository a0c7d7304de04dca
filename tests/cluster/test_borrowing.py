"""Splitwise: both places chosen on arrival, instances borrowed from the other pool, and who comes first in a step."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.cluster.borrowing import Borrowing
from scheduler_core.cluster.load import Load
from scheduler_core.cluster.pools import Pool, Pools
from scheduler_core.cluster.router import FewestTokens
from scheduler_core.policies.presets import Capacity
from scheduler_core.policies.resolving import check_layout
from scheduler_core.request.spec import RequestSpec
from scheduler_core.spec.parse import parse
from scheduler_core.spec.target import TargetSpec
from scheduler_core.testing.builders import Stepper, play_cluster, policy_spec, profile, request
from scheduler_core.testing.conformance import TARGET
from scheduler_core.types.cluster_records import Handoff, Landed, PoolChanged, Routed, Transferred
from scheduler_core.types.errors import InputError
from scheduler_core.types.records import Finished, Step
from tests.cluster.test_outages import audited

GROUPS = {"decode": 2, "prefill": 1}  # instances 0 and 1 decode, 2 prefills
LINK: dict[str, Any] = {"link_gb_per_s": 0.06, "link_latency_us": 0, "kv_bytes_per_token": 1000}


def borrowing(tokens: int, **changes: Any) -> Any:
    return policy_spec("splitwise", pools__borrow_tokens=tokens, **changes)


def changes_of(sink: Any) -> list[tuple[float, int, str]]:
    """(ms, instance, pool) of each change."""
    return [(record.at_ns / 1e6, record.instance, record.pool) for record in sink.of(PoolChanged)]


def test_a_full_prefill_pool_borrows_and_gives_back_who_is_idle() -> None:
    """SW-01, SW-03, SW-04. Four prompts of 60 tokens at once, at most 100 in a queue, steps of 10 ms, 1 ms a transfer.

    Request 0 goes to prefill, where 60 + 60 > 100 would wait with request 1: that borrows decode instance 0, and
    decodes at 1, the one that is not mixed; 0 answers to nobody yet but request 0, which came first. Request 2 borrows
    instance 1; nobody but mixed ones decodes now, and both are promised 63 tokens: the first. Request 3 finds no queue
    with room and nobody to borrow: both phases on the least loaded, 0, and nothing is moved. Three transfers share
    60 MB/s from 10 ms on: all land at 13. Prompts of 60 are under the 512 that stream. First tokens are prefill's, at
    10. Instance 1 ends request 1 at 33 and goes home; 0 decodes 3 alone in 10-20 and 2, 0 and 3 in 20-30, then 0 and 2
    in 30-40, and goes home.
    """
    requests = [request(index, 60, 3) for index in range(4)]
    report, sink, cluster = play_cluster(borrowing(100), requests, GROUPS, target=profile(base_ms=10), **LINK)
    assert [record.instance for record in sink.of(Routed)] == [2, 0, 1, 0]
    assert changes_of(sink) == [(0, 0, "mixed"), (0, 1, "mixed"), (33, 1, "decode"), (40, 0, "decode")]
    assert {record.request: record.destination for record in sink.of(Handoff)} == {0: 0, 1: 1, 2: 0}
    assert {(record.start_ns / 1e6, record.at_ns / 1e6) for record in sink.of(Transferred)} == {(10, 13)}
    first = {row[0]: s.available_ns / 1e6 for s in reversed(sink.of(Step)) for row in s.grants if row[5]}
    assert first == dict.fromkeys(range(4), 10)
    assert {record.request: record.at_ns / 1e6 for record in sink.of(Finished)} == {3: 30, 1: 33, 0: 40, 2: 40}
    assert report.outcomes == {"finished": 4}
    audited(sink, cluster, 4, 1000)


def test_a_full_decode_pool_borrows_from_prefill() -> None:
    """SW-02. A pool of 20 blocks of 16, 320 tokens: 160 are promised to each of two, 160 + 160 is no less than 320.

    Requests 0 and 1 (100 + 60) take both decode instances; request 2 borrows the prefill instance that is promised
    least and not its own: with two of them, that is the first.
    """
    requests = [request(index, 100, 60) for index in range(3)]
    groups = {"decode": 2, "prefill": 2}
    _, sink, cluster = play_cluster(borrowing(8192), requests, groups, capacity=Capacity(20, 1000), **LINK)
    assert changes_of(sink)[0] == (0, 2, "mixed")
    ends = {record.request: record.instance for record in sink.of(Landed)}
    assert (ends[0], ends[1]) == (0, 1)
    assert [record.instance for record in sink.of(Routed)][2] == 2  # of the fewest tokens that wait: mixed or not
    assert changes_of(sink)[-1][1:] == (2, "prefill")
    audited(sink, cluster, 3, 20)


def test_nobody_is_lent_for_a_request_that_finds_no_place_to_decode() -> None:
    """SW-03, last resort. Instance 1 of the prefill pool is mixed with 100 tokens in its queue, 0 decodes three, and
    could compute the prompt, but 200 + 300 tokens are decoded nowhere: both phases on the least loaded, which is 1, and
    0 stays what it is. One that can be decoded borrows 0 for its prompt, and is decoded there or at 1."""
    for limit, places, pool in ((300, (1, 1), Pool.DECODE), (50, (0, 0), Pool.MIXED)):
        pools = Pools([Pool.DECODE, Pool.PREFILL])
        pools.change(1, Pool.MIXED, "lent before", 0)
        loads = [Load(), Load()]
        loads[0].open, loads[1].open, loads[1].prefill_tokens = 3, 1, 100
        lending = Borrowing(pools, FewestTokens(), [400, 400], 100)
        pair = lending.place(RequestSpec(id=7, arrival_ns=0, prompt_tokens=200, output_limit=limit), (0, 1), loads, 1)
        assert (pair.prompt.instance, pair.decoder) == places
        assert pools[0] is pool


def test_large_prompts_are_sent_while_they_are_computed_and_small_ones_after() -> None:
    """SW-04. 600 tokens (600 kB) over 60 MB/s take 10 ms, 32 layers of a step of 10 ms: the last lands 10 / 32 ms after
    it; 60 tokens, under the 512 that stream, begin to move when their step is over."""
    for prompt, landed_ms in ((600, 20.0 - 10 + 10 / 32), (60, 11.0)):
        _, sink, _ = play_cluster(borrowing(8192), [request(0, prompt, 3)], GROUPS, target=profile(base_ms=10), **LINK)
        assert [record.at_ns / 1e6 for record in sink.of(Landed)] == [pytest.approx(landed_ms, abs=0.001)], prompt


def test_prompts_come_first_until_a_decode_was_left_out_too_often() -> None:
    """SW-05. A budget of 16 tokens, a request that decodes, and prompts of 16 that fill each step: the decode is left
    out of eight steps in a row and comes first in the ninth, beside 15 tokens of a prompt."""
    stepper = Stepper(policy_spec("splitwise", batch__token_budget=16, batch__size=64), Capacity(400, 1000))
    stepper.submit(0, 8)
    assert stepper.step() == {0: 8}
    for index in range(1, 12):
        stepper.submit(index, 16, limit=1)
    steps = [stepper.step(last=range(1, 12)) for _ in range(10)]
    assert [0 in grants for grants in steps] == [False] * 8 + [True, False]
    assert steps[8] == {0: 1, 9: 15}


def test_borrowing_needs_two_pools() -> None:
    target = parse(TargetSpec, {"modelled": {"profile": "any", "topology": {"groups": {"a": {"count": 2}}}}})
    with pytest.raises(InputError, match=r"pools\.borrow_tokens: lends instances .* but the layout is replicas"):
        check_layout(policy_spec("vllm_v1", pools__layout="replicas", pools__borrow_tokens=100), target)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 90), st.integers(1, 40), st.integers(0, 60)), min_size=1, max_size=30),
    st.integers(1, 200),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.sampled_from([0.0, 0.4]),
    st.lists(st.tuples(st.sampled_from(["prefill", "decode"]), st.integers(5, 60)), max_size=1),
)
def test_whoever_is_lent_nobody_is_lost_and_all_go_home(
    rows: Any, tokens: int, counts: tuple[int, int], faults: float, deaths: Any
) -> None:
    """Small pools, broken and late transfers, and one death: every request ends once, and who is left goes home."""
    requests = [request(i, prompt, output, at_ms=at) for i, (prompt, output, at) in enumerate(rows)]
    report, sink, cluster = play_cluster(
        borrowing(tokens, cache__block_size=4, pools__notice_ms=10),
        requests,
        {"prefill": counts[0], "decode": counts[1]},
        capacity=Capacity(60, 400),
        target=TARGET,
        outages=[{"at_s": at / 1e3, "group": group, "number": 0} for group, at in deaths],
        broken_share=faults,
        late_share=faults,
        late_ms=5,
        **LINK,
    )
    assert sum(report.outcomes.values()) == len(requests)
    assert len(sink.of(Finished)) == len(requests)
    assert not cluster.open_requests()
    last = {record.instance: record.pool for record in sink.of(PoolChanged)}
    homes = ["decode"] * counts[1] + ["prefill"] * counts[0]
    assert all(pool == homes[member] for member, pool in last.items())
    audited(sink, cluster, len(requests), 60)
