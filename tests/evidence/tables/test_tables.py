"""What is written is what is read: same numbers, same units, units in the names."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from scheduler_core.evidence.benchmark import SHARED_KEYS
from scheduler_core.evidence.finalise import finalise
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.evidence.tables.tables import TABLES_SCHEMA, read_table
from scheduler_core.spec.workload import Tier
from scheduler_core.types.errors import ExecutorError, InputError
from scheduler_core.types.records import Tie
from tests.evidence.played import play, summarise
from tests.evidence.scenes import Scene


def test_units_survive_screen_export_and_api(tmp_path: Path) -> None:
    """TTFT 1,615.58 ms and TPOT 48.82 ms: summary, table and exchange form hold the same numbers in the same unit."""
    scene = Scene(1)
    scene.arrive(0, 0)
    scene.admit(0, 0)
    scene.step(0, 1615.58, [(0, 10)])
    scene.step(1615.58, 1664.40, [(0, 1)])
    scene.finish(0, 1664.40)
    summary = summarise(scene.end(1664.40), tmp_path)
    row = read_table(tmp_path / "requests.parquet", ["ttft_ms", "tpot_ms"]).to_pylist()[0]
    exchange = json.loads((tmp_path / "benchmark.json").read_text())["metrics"]
    stored = RunSummary.model_validate_json((tmp_path / "summary.json").read_text())
    assert stored == summary
    for name, expected in (("ttft", 1615.58), ("tpot", 48.82)):
        figure = summary.metrics[f"{name}_mean_ms"]
        assert figure.unit == "ms"
        assert figure.value == pytest.approx(expected, abs=1e-9)
        assert row[f"{name}_ms"] == exchange[f"{name}_ms"] == figure.value


def test_every_time_column_carries_its_unit(tmp_path: Path) -> None:
    summarise(play({"policy": "vllm_v1"}), tmp_path)
    for name in ("requests", "steps", "gaps"):
        table = read_table(tmp_path / f"{name}.parquet")
        floats = [field.name for field in table.schema if str(field.type) == "double"]
        floats = [name for name in floats if name != "degraded_quality"]  # a score of the user's, no time
        assert all(column.endswith("_ms") for column in floats), floats
        assert not [column for column in table.column_names if column.endswith("_ns")]


def test_absences_are_typed_where_values_are_null(tmp_path: Path) -> None:
    summarise(play({"policy": "vllm_v1", "batch": {"queue_limit": 1}}, kv_blocks=110), tmp_path)
    for name in ("requests", "steps"):
        table = read_table(tmp_path / f"{name}.parquet")
        for column in table.column_names:
            nulls = table.column(column).is_null().to_pylist()
            if f"{column}_absence" in table.column_names:
                reasons = table.column(f"{column}_absence").is_null().to_pylist()
                assert [not reason for reason in reasons] == nulls, column
            elif not column.endswith("_absence"):
                assert not any(nulls), column


def test_shared_keys_are_all_there(tmp_path: Path) -> None:
    summary = summarise(play({"policy": "vllm_v1"}), tmp_path)
    data = json.loads((tmp_path / "benchmark.json").read_text())
    assert len(SHARED_KEYS) == 20
    assert data["metrics"].keys() == SHARED_KEYS.keys()
    assert data["schema_version"] == "inference-benchmark/v1"
    absent = {key for key, value in data["metrics"].items() if value is None}
    assert data["absence"].keys() == absent >= {"handoff_ms", "overlap_ratio", "peak_memory_mb"}
    assert data["metrics"]["p95_ms"] == summary.metrics["e2e_p95_ms"].value
    assert {"project", "strategy", "role", "config", "quality", "status", "evidence_level", "failure", "decision",
            "strategy_metrics", "source"} <= data.keys()  # fmt: skip


def test_foreign_and_newer_tables_are_refused(tmp_path: Path) -> None:
    summarise(play({"policy": "vllm_v1"}, {"requests": 5}), tmp_path)
    path = tmp_path / "requests.parquet"
    pq.write_table(pq.read_table(path).replace_schema_metadata({"headway_schema": "headway-tables/9"}), path)
    with pytest.raises(InputError, match=f"headway-tables/9, this reader knows {TABLES_SCHEMA}"):
        read_table(path)
    path.write_bytes(b"not parquet")
    with pytest.raises(InputError, match="not a Parquet table"):
        read_table(path)


def test_near_ties_are_places_in_the_output(tmp_path: Path) -> None:
    """The record counts output tokens from 0: the second token was the near-tie."""
    scene = Scene(1, source="kernel")
    scene.arrive(0, 0)
    scene.admit(0, 0)
    scene.step(0, 10, [(0, 10)])
    scene.step(10, 20, [(0, 1)])
    scene.add(Tie(0, 1, 1e-6))
    scene.finish(0, 20, tokens=[41, 42])
    summary = summarise(scene.end(20), tmp_path)
    assert (summary.ties, len(summary.outputs_digest or "")) == (1, 32)
    assert read_table(tmp_path / "outputs.parquet").to_pylist() == [
        {"request": 0, "token_ids": [41, 42], "tie_positions": [1]}
    ]


def test_cut_off_records_still_give_a_summary(tmp_path: Path) -> None:
    """A kill in mid-run: what was measured is kept, open requests are cut off, offered = sum of outcomes."""
    records = play({"policy": "vllm_v1"})
    summary = summarise(records[: len(records) // 2], tmp_path)
    assert not summary.complete
    assert summary.outcomes["cut_off"] > 0
    assert sum(summary.outcomes.values()) == summary.offered == 120
    assert summary.audit.violations == []


def test_records_without_a_start_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ExecutorError, match="run_started"):
        finalise(play({"policy": "static"})[1:], folder=tmp_path, arm="a", repeat=0, tiers={"default": Tier()})
