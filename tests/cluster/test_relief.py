"""Admission by transfer: who waits goes to another instance once theirs has been saturated for long (A4)."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.policies.presets import Capacity
from scheduler_core.spec.pools import TierPool
from scheduler_core.testing.builders import play_cluster, policy_spec, profile, request
from scheduler_core.testing.conformance import TARGET
from scheduler_core.types.cluster_records import Overflowed, Reassigned
from scheduler_core.types.records import Admitted, Finished
from tests.cluster.test_outages import audited

SLOW = profile(base_ms=0, prefill_token_ms=1)
LINK: dict[str, Any] = {"link_gb_per_s": 0.0002, "link_latency_us": 5000}  # 200 bytes per ms, and 5 ms


def relieved(layout: str = "replicas", **rules: Any) -> Any:
    """A spec whose router is blind: each session at its home; at most one request runs."""
    given_ = {"wait_ms": 250, "window_s": 0.2, "every_s": 0.1, **rules}
    prefill = {"pools__prefill": ("a",)} if layout == "split" else {}
    return policy_spec(
        "vllm_v1", pools__layout=layout, pools__route="sticky", pools__transfer=given_, batch__size=1, **prefill
    )


def at_home(count: int, home_prompt: int) -> list[Any]:
    """``count`` requests of one session, whose first one went to instance 0."""
    return [request(i, home_prompt, 1, session=7) for i in range(count)]


def moves_of(sink: Any) -> list[tuple[float, int, str]]:
    """(ms, request, action) of each."""
    return [(record.at_ns / 1e6, record.request, record.action) for record in sink.of(Reassigned)]


def test_who_waits_last_leaves_a_saturated_instance_and_the_way_is_charged() -> None:
    """1 ms a prompt token, one at a time: six prompts of 100 wait at instance 0, none at instance 1.

    A look comes before the steps that end as it comes, so it finds 600 ms at 100, 500 at 200, 400 at 300, always above
    350: the window of 200 ms is over at 300. The last in line, 5, would take 100 at instance 1 and goes. With 300 left
    the bound is kept, so 4 stays. The 400 bytes of ids of 5 take 2 ms and the link 5: it arrives at 307, is computed by
    407, and is over before request 4, which ends at 500.
    """
    _, sink, cluster = play_cluster(relieved(wait_ms=350), at_home(6, 100), {"a": 2}, target=SLOW, **LINK)
    assert moves_of(sink) == [(300, 5, "leaves"), (307, 5, "arrives")]
    (left, _) = sink.of(Reassigned)
    assert (left.source, left.destination, left.wait_ns, left.bound_ns, left.there_ns) == (
        0,
        1,
        400_000_000,
        350_000_000,
        0,
    )
    ends = {record.request: record.at_ns / 1e6 for record in sink.of(Finished)}
    assert ends == {0: 100, 1: 200, 2: 300, 3: 400, 5: 407, 4: 500}
    summary = audited(sink, cluster, 6, 1000)
    assert summary.metrics["requests_reassigned"].value == 1
    assert summary.metrics["reassignment_ms"].value == pytest.approx(7)
    assert {row.request: row.at_ns / 1e6 for row in sink.of(Admitted)}[5] == 307


def test_who_is_taken_beyond_its_tiers_own_overflows() -> None:
    """As above, where instance 1 only helps out, while 0 has three requests or more: 5 goes there at 307."""
    spec = relieved(wait_ms=350)
    tiers = {"default": {"groups": "a", "overflow": "b", "overflow_at": 3}}
    pools = spec.pools.model_copy(update={"tiers": {name: TierPool.model_validate(t) for name, t in tiers.items()}})
    spec = spec.model_copy(update={"pools": pools})
    _, sink, cluster = play_cluster(spec, at_home(6, 100), {"a": 1, "b": 1}, target=SLOW, **LINK)
    assert moves_of(sink) == [(300, 5, "leaves"), (307, 5, "arrives")]
    assert [(record.at_ns / 1e6, record.request, record.instance) for record in sink.of(Overflowed)] == [(307, 5, 1)]
    assert audited(sink, cluster, 6, 1000).metrics["requests_reassigned"].value == 1


def test_a_burst_shorter_than_the_window_moves_nobody() -> None:
    """Four prompts of 100: 400 and 300 ms at the first looks, 200 at the third: 250 is not passed for 200 ms."""
    _, sink, _ = play_cluster(relieved(wait_ms=250), at_home(4, 100), {"a": 2}, target=SLOW, **LINK)
    assert moves_of(sink) == []


def test_nobody_goes_where_it_would_take_longer() -> None:
    """Both instances are equally full: each is saturated, and nobody would be served sooner at the other."""
    requests = [request(i, 100, 1, session=i % 2) for i in range(12)]
    _, sink, _ = play_cluster(relieved(), requests, {"a": 2}, target=SLOW, **LINK)
    assert moves_of(sink) == []


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20), st.integers(0, 80)), min_size=1, max_size=30),
    st.sampled_from(["replicas", "split"]),
    st.lists(st.tuples(st.integers(0, 29), st.integers(0, 200)), max_size=5),
    st.lists(st.tuples(st.integers(0, 1), st.integers(5, 200)), max_size=1),
)
def test_nobody_is_lost_on_the_way(rows: Any, layout: str, cancels: Any, deaths: Any) -> None:
    """Blind routing, a bound that is often passed, cancels on the way, and the death of one side."""
    requests = [request(i, prompt, output, at_ms=at, session=0) for i, (prompt, output, at) in enumerate(rows)]
    groups = {"a": 2} if layout == "replicas" else {"a": 2, "b": 1}
    _, sink, cluster = play_cluster(
        relieved(layout, wait_ms=5, window_s=0.01, every_s=0.005),
        requests,
        groups,
        capacity=Capacity(60, 400),
        target=TARGET,
        cancels=[(index, at * 1_000_000) for index, at in cancels if index < len(rows)],
        outages=[{"at_s": at / 1e3, "group": "a", "number": number} for number, at in deaths],
        link_gb_per_s=0.0002,
    )
    assert sorted(record.request for record in sink.of(Finished)) == list(range(len(requests)))
    assert not cluster.open_requests()
    audited(sink, cluster, len(requests), 60)
