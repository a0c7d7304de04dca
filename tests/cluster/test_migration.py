"""Live migration: stages while the request decodes, a short stop, and nothing lost whatever happens on the way."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.policies.presets import Capacity
from scheduler_core.testing.builders import play_cluster, policy_spec, request
from scheduler_core.types.cluster_records import Landed, Migration, Transferred
from scheduler_core.types.records import Finished, Step
from tests.cluster.test_replicas import COSTLY, REQUESTS, summary_of

PREFIX = {"cache__prefix": "none"}


def migrating(**rules: Any) -> Any:
    """Replicas in turn, so that loads are out of balance where requests are, with migration by ``rules``."""
    return policy_spec(
        "vllm_v1",
        pools__layout="replicas",
        pools__route="round_robin",
        pools__migrate={"every_ms": 10, "above": 0.5, **rules},
        batch__token_budget=4096,
        **PREFIX,
    )


def audited(sink: Any, cluster: Any, offered: int, blocks: int) -> Any:
    described = [{"name": m.name, "group": m.group, "kv_blocks": blocks} for m in cluster.members]
    summary = summary_of(sink.records, described, offered, blocks * len(described))
    assert summary.audit.passed, summary.audit.violations
    return summary


def alone(decoded: int, **rules: Any) -> Any:
    """One long request on instance 0 of two, 2,000 KV tokens each, and one short one on instance 1."""
    spec = migrating(above=0.4, **rules)
    requests = [request(0, 944, decoded), request(1, 4, 1)]
    link: dict[str, Any] = {"link_gb_per_s": 0.1, "link_latency_us": 0, "kv_bytes_per_token": 1000}
    return play_cluster(spec, requests, {"a": 2}, capacity=Capacity(125, 4096), **link)


def test_a_single_request_is_not_pushed_to_and_fro() -> None:
    """Moving all there is would turn the gap round (LX-04): it stays, however loaded its instance is."""
    _, sink, _ = alone(100)
    assert not sink.of(Migration)


def test_the_stages_of_sixty_blocks() -> None:
    """LX-06. Two requests of 944 tokens on instance 0 of 4,000, seen at 10 ms with 953: 60 blocks of 16 held.

    Stage 1 copies 59 of them (944 kB, 9.44 ms). At 19.44 ms 962 tokens are there, 2 blocks are left, so the
    request stops in stage 2 at the end of its step, at 20 ms, with 963: 19 kB, 0.19 ms, and lands at 20.19 ms.
    """
    spec = migrating(above=0.4)
    requests = [request(0, 944, 100), request(1, 4, 1), request(2, 944, 100)]
    link: dict[str, Any] = {"link_gb_per_s": 0.1, "link_latency_us": 0, "kv_bytes_per_token": 1000}
    _, sink, cluster = play_cluster(spec, requests, {"a": 2}, capacity=Capacity(250, 4096), **link)
    assert [(r.request, r.action, r.stage, r.tokens, r.at_ns) for r in sink.of(Migration)] == [
        (0, "started", 1, 944, 10_000_000),
        (0, "stopped", 2, 963, 20_000_000),
        (0, "landed", 2, 963, 20_190_000),
    ]
    assert [record.bytes for record in sink.of(Transferred)] == [944_000, 19_000]
    assert [(record.request, record.instance, record.tokens) for record in sink.of(Landed)] == [(0, 1, 963)]
    after = [s for s in sink.of(Step) if s.instance == 1 and s.grants[0][0] == 0]
    assert after[0].planned_ns == 20_190_000
    summary = audited(sink, cluster, 3, 250)
    assert summary.metrics["migration_ms"].value == pytest.approx(10.19)
    assert summary.metrics["migration_stop_ms"].value == pytest.approx(0.19)
    assert summary.metrics["migration_bytes"].value == 963_000


def test_a_copy_that_never_catches_up_is_dropped_and_the_request_goes_on() -> None:
    """A block of 1 token, 1 token a ms, a link of 0.7 tokens a ms: each stage leaves more than the one before."""
    spec = migrating(above=0.13, last_blocks=1, every_ms=1000)
    spec = spec.model_copy(update={"cache": spec.cache.model_copy(update={"block_size": 1})})
    requests = [request(0, 60, 5500), request(1, 4, 1), request(2, 60, 5500)]
    link: dict[str, Any] = {"link_gb_per_s": 0.0007, "link_latency_us": 0, "kv_bytes_per_token": 1000}
    _, sink, _ = play_cluster(spec, requests, {"a": 2}, capacity=Capacity(16_000, 8192), law_interval=100, **link)
    dropped = [record for record in sink.of(Migration) if record.action == "dropped"]
    assert {(record.stage, record.reason) for record in dropped} == {(3, "too_many_stages")}
    assert {record.outcome for record in sink.of(Finished)} == {"finished"}


def test_a_migration_that_breaks_off_at_the_end_puts_the_request_back() -> None:
    spec = migrating(above=0.4)
    requests = [request(0, 944, 40), request(1, 4, 1), request(2, 944, 40)]
    link: dict[str, Any] = {"link_gb_per_s": 0.1, "kv_bytes_per_token": 1000, "broken_share": 1.0}
    _, sink, cluster = play_cluster(spec, requests, {"a": 2}, capacity=Capacity(250, 4096), **link)
    assert "broken_off" in {record.reason for record in sink.of(Migration)}
    assert {step.instance for step in sink.of(Step) if any(row[0] in (0, 2) for row in step.grants)} == {0}
    assert {(r.outcome, r.output_tokens) for r in sink.of(Finished)} == {("finished", 40), ("finished", 1)}
    audited(sink, cluster, 3, 250)


@settings(max_examples=60, deadline=None)
@given(
    REQUESTS,
    st.sampled_from(["shortest", "longest", "last"]),
    st.sampled_from([1, 2]),
    st.sampled_from(["none", "hash"]),
    st.sampled_from(["replicas", "split"]),
    st.sampled_from([0.0, 0.4]),
    st.lists(st.tuples(st.integers(0, 13), st.integers(0, 25_000_000)), max_size=4),
    st.sampled_from([0, 3]),
)
def test_nobody_is_lost_on_the_way(
    requests: Any, pick: str, last_blocks: int, prefix: str, layout: str, faults: float, cancels: Any, drafts: int
) -> None:
    """Cancels, preemptions and broken copies at any moment, pools of 12 blocks: everybody ends once, nothing leaks."""
    spec = policy_spec(
        "vllm_v1",
        batch__size=3,
        batch__token_budget=20,
        cache__block_size=4,
        cache__prefix=prefix,
        execution__draft_tokens=drafts,
        pools__layout=layout,
        pools__route="round_robin",
        pools__prefill=("p",) if layout == "split" else None,
        pools__migrate={"every_ms": 1, "above": 0.1, "pick": pick, "last_blocks": last_blocks},
    )
    cancels = [(number, at) for number, at in dict(cancels).items() if number < len(requests)]
    report, sink, cluster = play_cluster(
        spec,
        requests,
        {"a": 3, "p": 1} if layout == "split" else {"a": 3},
        capacity=Capacity(12, 1000),
        target=COSTLY,
        cancels=cancels,
        link_gb_per_s=0.02,
        kv_bytes_per_token=2000,
        broken_share=faults,
    )
    assert sum(report.outcomes.values()) == len(requests)
    assert not cluster.open_requests()
    assert all(member.instance.occupancy().kv_used == 0 for member in cluster.members)
    audited(sink, cluster, len(requests), 12)
