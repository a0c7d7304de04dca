"""Runs too large to hold: columns in files, quantiles by passes over batches, and tables in parts."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.evidence import columns
from scheduler_core.evidence.columns import GrowingColumns, Marks
from scheduler_core.evidence.finalise import finalise
from scheduler_core.evidence.tables import order_statistics, requests, tables
from scheduler_core.evidence.tables.order_statistics import OrderStatistics
from scheduler_core.evidence.tables.tables import read_table
from scheduler_core.spec.workload import Tier
from scheduler_core.types.quantile import quantile
from tests.evidence.played import play

ROWS = st.lists(st.tuples(st.integers(0, 40), st.integers(-(2**62), 2**62)), max_size=60)


@settings(max_examples=30)
@given(ROWS)
def test_columns_in_a_file_are_those_that_were_held(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int]]
) -> None:
    held, filed = GrowingColumns(("at", "value")), GrowingColumns(("at", "value"), tmp_path_factory.getbasetemp())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "HELD_ROWS", 7)
        for row in rows:
            held.append(*row)
            filed.append(*row)
        expected, found = held.sorted_by("at"), filed.sorted_by("at")
    assert {name: column.tolist() for name, column in found.items()} == {
        name: column.tolist() for name, column in expected.items()
    }


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.floats(allow_nan=False) | st.sampled_from([1.0, 1.0, 2.5]), max_size=30), max_size=6),
    st.sampled_from([0.0, 0.5, 0.95, 1.0]),
)
def test_order_statistics_are_those_of_all_values_sorted(batches: list[list[float]], share: float) -> None:
    arrays = [np.array(batch) for batch in batches]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order_statistics, "HELD", 4)
        found = OrderStatistics(lambda: arrays)
        expected = sorted(value for batch in batches for value in batch)
        assert [found[place] for place in range(len(found))] == expected
        if expected and np.isfinite(expected).all():
            assert quantile(found, share) == quantile(expected, share)
    with pytest.raises(IndexError):
        found[len(expected)]


@settings(max_examples=30)
@given(st.sets(st.integers(0, 5000)))
def test_marks_are_a_set(numbers: set[int]) -> None:
    marks = Marks()
    for number in numbers:
        marks.add(number)
    assert {number for number in range(5100) if number in marks} == numbers


def test_a_run_in_files_has_the_summary_and_tables_of_one_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = play({"policy": "vllm_v1"})
    held = finalise(records, folder=_folder(tmp_path, "held"), arm="a", repeat=0, tiers={"default": Tier()})
    for module, name, most in (
        (columns, "HELD_ROWS", 3), (order_statistics, "HELD", 5), (requests, "HELD_VALUES", 1),
        (tables, "ROWS_PER_GROUP", 4),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, most)
    monkeypatch.setattr("scheduler_core.evidence.tables.request_table.ROWS_PER_GROUP", 4)
    filed = finalise(records, folder=_folder(tmp_path, "filed"), arm="a", repeat=0, tiers={"default": Tier()})
    assert filed == held
    for name in ("requests", "steps", "gaps"):
        table, other = (read_table(tmp_path / folder / f"{name}.parquet") for folder in ("filed", "held"))
        assert table.to_pylist() == other.to_pylist()
        assert len(table) > 4
    assert sorted(path.name for path in (tmp_path / "filed").iterdir()) == sorted(
        path.name for path in (tmp_path / "held").iterdir()
    )


def _folder(base: Path, name: str) -> Path:
    (base / name).mkdir()
    return base / name
