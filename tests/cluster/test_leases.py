"""What a given-up transfer may still touch is held at both sides, until its bytes are reported or the lease is over."""

from typing import Any

import pytest

from scheduler_core.evidence.audit.replay import Audit
from scheduler_core.policies.presets import Capacity
from scheduler_core.testing.builders import play_cluster, policy_spec, request
from scheduler_core.types.cluster_records import Handoff, Landed, Leased, LeaseEnded
from scheduler_core.types.records import Finished, RunStarted
from scheduler_core.types.time import NS_PER_MS
from tests.cluster.test_outages import audited, death

GROUPS = {"decode": 1, "prefill": 1}


def split(lease_ms: float, **options: Any) -> Any:
    pools = {"layout": "split", "prefill": ("prefill",), "lease_ms": lease_ms, "notice_ms": 20, **options}
    return policy_spec("vllm_v1", cache__prefix="none", **{f"pools__{name}": value for name, value in pools.items()})


@pytest.mark.parametrize(
    ("lease_ms", "late_ms", "dies", "ends_ms", "how"),
    [
        (200, 0, False, 101, "reported"),
        (200, 50, False, 151, "reported"),
        (30, 0, False, 80, "expired"),
        (200, 0, True, 255, "expired"),
        (30, 50, False, 80, "expired"),
    ],
)
def test_blocks_are_held_until_the_report_or_the_end_of_the_lease(
    lease_ms: float, late_ms: float, dies: bool, ends_ms: float, how: str
) -> None:
    """PD-07. 1 ms a step; 100 tokens, 7 blocks of 16, of 1 kB over 1 MB/s: from 1 ms to 101 on the link. Aborted at 50.

    The bytes move on: both sides hold 7 of 10 blocks until 101, or 50 later where the report is late, or for a lease of
    30 ms until 80. The next prompt of 60 tokens (4 blocks) can be computed then, and is sent a step later. Where
    prefill died at 40, and was missed as it came back at 55, nobody will report: the lease of the decode side ends at
    255; the prompt was computed by 61 and is sent then. A report after the end frees nothing.
    """
    outages = [death("prefill", 40, back_after_s=0.015)] if dies else []
    _, sink, cluster = play_cluster(
        split(lease_ms, on_death="fail"),
        [request(0, 100, 4), request(1, 60, 3, at_ms=60)],
        GROUPS,
        capacity=Capacity(10, 1000),
        cancels=[] if dies else [(0, 50 * NS_PER_MS)],
        outages=outages,
        cold_start={"place_s": 0, "image_s": 0, "weights_s": 0, "graphs_s": 0},
        link_gb_per_s=0.001,
        link_latency_us=0,
        link_shared=False,
        kv_bytes_per_token=1000,
        late_share=1.0 if late_ms else 0.0,
        late_ms=late_ms,
    )
    (held,) = sink.of(Leased)
    assert (held.at_ns / 1e6, held.source_blocks, held.destination_blocks) == (55 if dies else 50, 7, 7)
    (ended,) = sink.of(LeaseEnded)
    assert (ended.at_ns / 1e6, ended.how) == (ends_ms, how)
    sent = {record.request: record.at_ns / 1e6 for record in sink.of(Handoff)}
    assert sent[1] == (ends_ms if dies else ends_ms + 1)
    assert {record.request for record in sink.of(Landed)} == {1}
    assert {record.request: record.outcome for record in sink.of(Finished)}[1] == "finished"
    assert [member.instance.occupancy().kv_used for member in cluster.members] == [0, 0]
    summary = audited(sink, cluster, 2, 10)
    assert summary.metrics["transfer_leases"].value == 1
    assert summary.metrics["transfer_leases_expired"].value == (how == "expired")


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ([(80, "expired")], ""),
        ([(60, "reported")], ""),
        ([(70, "expired")], "expired after 20000000 ns of at most 30000000"),
        ([(90, "reported")], "reported after 40000000 ns of at most 30000000"),
        ([(60, "reported"), (80, "expired")], "ended at 80000000 ns, but none was held"),
    ],
)
def test_the_audit_finds_leases_that_end_twice_or_too_late(ends: list[tuple[int, str]], message: str) -> None:
    """A lease of 30 ms from 50 on."""
    audit = Audit()
    audit.take(
        RunStarted(run="r", attempt=1, plan_digest="p", policy_digest="d", policy={"pools": {"lease_ms": 30}},
                   target={}, level="simulation", source="modelled", offered=1, kv_blocks=0, block_size=1,
                   token_budget=0)
    )  # fmt: skip
    audit.take(Leased(50 * NS_PER_MS, 0, 1, 2, 7, 7))
    for at_ms, how in ends:
        audit.take(LeaseEnded(at_ms * NS_PER_MS, 0, 1, 2, how))
    assert [violation.message for violation in audit.violations] == ([message] if message else [])
