"""Critical path, timeline and CSV agree with the tables they come from."""

import csv
import json
from pathlib import Path

import pytest

from scheduler_core.evidence.export.csv_tables import write_csv
from scheduler_core.evidence.export.timeline import write_timeline
from scheduler_core.evidence.path.critical_path import critical_path
from scheduler_core.evidence.path.report import path_report
from scheduler_core.evidence.tables.tables import read_table
from scheduler_core.types.errors import InputError
from scheduler_core.types.records import Record
from tests.evidence.played import play, summarise
from tests.evidence.scenes import Scene, ns, recomputed

TIGHT = {"arrivals": {"poisson": {"rate_rps": 20}}, "requests": 40}


def test_path_is_as_long_as_elapsed_time(tmp_path: Path) -> None:
    records = play({"policy": "vllm_v1"}, TIGHT, kv_blocks=110)
    summarise(records, tmp_path)
    for row in read_table(tmp_path / "requests.parquet").to_pylist():
        path = critical_path(records, row["request"])
        assert path.elapsed_ns == ns(row["e2e_ms"])
        assert path.exposed_ns("queue") == ns(row["queue_wait_ms"])
        assert path.exposed_ns("compute_decode") == ns(row["decode_ms"])


def test_worked_path() -> None:
    """Tokens 50, 60, 70, preempted 75, back at 150: 50 prefill, 20 decode, 5 nothing, 75 requeue, 50 recompute, 10."""
    path = critical_path(recomputed(), 0)
    assert [(stretch.kind, stretch.length_ns // ns(1)) for stretch in path.stretches] == [
        ("compute_prefill", 50), ("compute_decode", 20), ("unattributed", 5), ("requeue", 75), ("recompute", 50),
        ("compute_decode", 10),
    ]  # fmt: skip
    assert path.elapsed_ns == ns(210)


def hiding() -> list[Record]:
    """Compute 0-10 and copying out 8-12: the copy is 4 ms long, of which 2 ms are exposed."""
    scene = Scene(1)
    scene.arrive(0, 0)
    scene.admit(0, 0)
    scene.step(0, 12, [(0, 10)], compute=(0, 10), lanes=[("output_transfer", 8, 12)])
    scene.finish(0, 12)
    return scene.end(12)


def test_hidden_work_would_take_the_place() -> None:
    """Without compute the copy would still take 4 ms of the 12: 8 ms sooner. Without the copy, compute ends at 10."""
    path = critical_path(hiding(), 0)
    assert path.exposed_ns("output_transfer") == ns(2)
    assert path.would_shorten_ns("output_transfer") == ns(2)
    assert [(stretch.kind, stretch.length_ns // ns(1), stretch.hidden) for stretch in path.stretches] == [
        ("compute_prefill", 8, ()), ("compute_prefill", 2, ("output_transfer",)), ("output_transfer", 2, ()),
    ]  # fmt: skip
    assert path.would_shorten_ns("compute_prefill") == ns(8)


def test_what_each_kind_exposes_hides_and_would_save() -> None:
    report = path_report(hiding(), 0)
    assert report.elapsed_ms == 12
    assert [(part.kind, part.exposed_ms, part.hidden_ms, part.would_shorten_ms) for part in report.parts] == [
        ("compute_prefill", 10, 0, 8), ("output_transfer", 2, 2, 2),
    ]  # fmt: skip
    assert sum(stretch.end_ms - stretch.start_ms for stretch in report.stretches) == report.elapsed_ms


def test_request_without_tokens_has_no_path() -> None:
    with pytest.raises(InputError, match="request 7 has no token"):
        critical_path(recomputed(), 7)


def test_timeline_is_a_trace_that_adds_up(tmp_path: Path) -> None:
    records = play({"policy": "vllm_v1"}, TIGHT, kv_blocks=110)
    summarise(records, tmp_path)
    data = json.loads(write_timeline(records, tmp_path / "timeline.json").read_text())
    slices = [event for event in data["traceEvents"] if event["ph"] == "X"]
    assert all(event["dur"] >= 0 for event in slices)
    lengths: dict[int, float] = {}
    for event in slices:
        if event["pid"] == 2:
            lengths[event["tid"] - 1] = lengths.get(event["tid"] - 1, 0) + event["dur"]
    rows = read_table(tmp_path / "requests.parquet", ["request", "e2e_ms"]).to_pylist()
    assert lengths == {row["request"]: pytest.approx(row["e2e_ms"] * 1000, abs=1e-3) for row in rows}
    steps = [event for event in slices if event["pid"] == 1]
    assert len(steps) == read_table(tmp_path / "steps.parquet").num_rows


def test_csv_reads_back_equal(tmp_path: Path) -> None:
    summarise(play({"policy": "vllm_v1", "batch": {"queue_limit": 1}}, TIGHT, kv_blocks=110), tmp_path)
    for name in ("requests", "steps", "gaps"):
        table = read_table(tmp_path / f"{name}.parquet")
        path = write_csv(tmp_path / f"{name}.parquet", tmp_path / f"{name}.csv")
        with path.open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        assert list(rows[0]) == table.column_names
        assert len(rows) == table.num_rows
        for row, kept in zip(rows, table.to_pylist(), strict=True):
            for column, value in kept.items():
                if value is None:
                    assert row[column] == ""
                elif isinstance(value, float):
                    assert float(row[column]) == value
                else:
                    assert row[column] == str(value).lower() if isinstance(value, bool) else row[column] == str(value)
