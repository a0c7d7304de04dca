"""Whole modelled runs keep every law, whatever the policy and however tight the pool."""

from pathlib import Path
from typing import Any

import pytest

from scheduler_core.types.records import Arrived, Finished
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
