from pathlib import Path

from scheduler_core.evidence.finalise import finalise
from scheduler_core.evidence.tables.tables import read_table
from scheduler_core.spec.workload import Tier
from tests.evidence.scenes import recomputed


def test_recompute_is_not_counted_twice(tmp_path: Path) -> None:
    """Tokens 50, 60, 70, (preempted 75), 200, 210: TTFT 50, TPOT (210 - 50) / 4 = 40, E2E 210, gaps 10 10 130 10."""
    summary = finalise(recomputed(), folder=tmp_path, arm="a", repeat=0, tiers={"default": Tier()})
    assert [v.message for v in summary.audit.violations] == ["5000000 ns of 210000000 ns unattributed, bound 0 ns"]
    row = read_table(tmp_path / "requests.parquet").to_pylist()[0]
    expected = {"output_tokens": 5, "ttft_ms": 50, "tpot_ms": 40, "e2e_ms": 210, "recomputed_tokens": 12}
    assert {name: row[name] for name in expected} == expected
    assert read_table(tmp_path / "gaps.parquet").column("gap_ms").to_pylist() == [10, 10, 130, 10]
    assert (row["longest_gap_ms"], row["longest_gap_cause"]) == (130, "preempted: no_blocks")
    assert (row["requeue_wait_ms"], row["recompute_ms"], row["decode_ms"]) == (75, 50, 30)
