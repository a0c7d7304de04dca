"""Whole modelled runs keep every law, whatever the policy and however tight the pool."""

from pathlib import Path
from typing import Any

import pytest

from tests.evidence.played import play, summarise


@pytest.mark.parametrize(
    ("policy", "kv_blocks"),
    [
        pytest.param({"policy": "static", "batch": {"size": 8}}, 512, id="static"),
        pytest.param({"policy": "vllm_v1"}, 512, id="continuous"),
        pytest.param({"policy": "vllm_v1", "batch": {"token_budget": 64}}, 512, id="small chunks"),
        pytest.param({"policy": "vllm_v1"}, 110, id="preempting"),
        pytest.param({"policy": "vllm_v1", "batch": {"queue_limit": 1}}, 110, id="rejecting"),
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
