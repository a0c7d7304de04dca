"""Whole modelled runs keep every law, whatever the policy and however tight the pool."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from scheduler_core.types.records import Arrived, Finished, Gated
from tests.evidence.played import play, summarise


@pytest.mark.parametrize(
    ("policy", "kv_blocks"),
    [
        pytest.param({"policy": "static", "batch": {"size": 8}}, 512, id="static"),
        pytest.param({"policy": "vllm_v1"}, 512, id="continuous"),
        pytest.param({"policy": "vllm_v1", "batch": {"token_budget": 64}}, 512, id="small chunks"),
        pytest.param({"policy": "vllm_v1"}, 110, id="preempting"),
        pytest.param({"policy": "vllm_v1", "batch": {"queue_limit": 1}}, 110, id="rejecting"),
        pytest.param({"policy": "vllm_v1", "admission": {"reject_queued_tokens": 900, "throttle_requests_per_s": 15,
                      "degrade_kv_share": 0.5, "degrade_output_tokens": 8}}, 110, id="gated"),
        pytest.param({"policy": "fastserve"}, 110, id="levels"),
        pytest.param({"policy": "fastserve", "batch": {"size": 6}}, 60, id="swap by levels"),
        pytest.param({"policy": "vllm_v1", "feedback": {"step_ms": 20}}, 110, id="feedback"),
        pytest.param({"policy": "vllm_v1", "cache": {"prefix": "hash"}, "order": {"by": "priority"}}, 110, id="cached"),
    ],
)  # fmt: skip
def test_every_run_passes_its_audit(policy: dict[str, Any], kv_blocks: int, tmp_path: Path) -> None:
    workload = {"prefix": {"groups": 3, "tokens": 128, "share": 0.5}, "arrivals": {"poisson": {"rate_rps": 20}}}
    summary = summarise(play(policy, workload, kv_blocks=kv_blocks), tmp_path, workload=workload)
    assert summary.audit.violations == []
    assert sum(summary.outcomes.values()) == summary.offered == 120
    assert summary.metrics["unattributed_share_max"].value == 0
    print(summary.outcomes, summary.metrics["preemptions"].value, summary.metrics["hit_rate"].value)
    print(summary.longest_gap_causes)


@pytest.mark.parametrize("declared", [None, 0.8])
def test_who_was_degraded_is_told_with_what_was_changed_and_the_declared_score(
    declared: float | None, tmp_path: Path
) -> None:
    """Above half of the pool newcomers get 8 tokens at most and stand 2 tiers lower; the record says who they were."""
    admission = {"degrade_kv_share": 0.5, "degrade_output_tokens": 8, "degrade_priority": 2}
    policy = {"policy": "vllm_v1", "admission": admission | ({} if declared is None else {"degrade_quality": declared})}
    workload = {"arrivals": {"poisson": {"rate_rps": 20}}}
    records = play(policy, workload, kv_blocks=110)
    summary = summarise(records, tmp_path, workload=workload)
    less = {record.request for record in records if isinstance(record, Gated) and record.disposal == "degrade"}
    assert 5 < len(less) < 120
    assert summary.metrics["degraded_share"].value == len(less) / 120
    rows = pq.read_table(tmp_path / "requests.parquet").to_pylist()
    for row in rows:
        degraded = row["request"] in less
        assert row["degraded"] == ("output_limit=8, priority=2" if degraded else None)
        assert row["degraded_absence"] == (None if degraded else "not_applicable")
        assert row["degraded_quality"] == (declared if degraded else None)
        absent = None if degraded and declared else "not_measured" if degraded else "not_applicable"
        assert row["degraded_quality_absence"] == absent


def test_requests_given_up_and_out_of_time_are_outcomes_of_their_own(tmp_path: Path) -> None:
    """The impatient tier may wait 100 ms and take 400; a fifth of all clients gives up within a second."""
    workload = {
        "arrivals": {"poisson": {"rate_rps": 20}},
        "tiers": {"impatient": {"share": 0.5, "queue_timeout_ms": 100, "timeout_ms": 400}, "patient": {"share": 0.5}},
        "cancels": {"share": 0.2, "to_ms": 1000},
    }
    records = play({"policy": "vllm_v1"}, workload, kv_blocks=110)
    summary = summarise(records, tmp_path, workload=workload)
    assert summary.audit.violations == []
    assert sum(summary.outcomes.values()) == summary.offered == 120
    assert min(summary.outcomes[name] for name in ("finished", "timed_out", "cancelled")) > 5
    assert summary.metrics["timeout_share"].value == summary.outcomes["timed_out"] / 120
    tiers = {record.request: record.tier for record in records if isinstance(record, Arrived)}
    late = [record for record in records if isinstance(record, Finished) and record.outcome == "timed_out"]
    assert {(tiers[record.request], record.reason, record.stage == "queue") for record in late} >= {
        ("impatient", "queue_timeout", True),
        ("impatient", "total_timeout", False),
    }
