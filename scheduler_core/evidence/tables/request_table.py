"""The requests table on disk."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from scheduler_core.evidence.columns import MISSING, Ints
from scheduler_core.evidence.schema import Absence
from scheduler_core.evidence.tables.requests import Column, Requests
from scheduler_core.evidence.tables.tables import ROWS_PER_GROUP, Mask, TableWriter, absence_column, ms, text

_COUNTS = (
    "request", "prompt_tokens", "output_limit", "output_tokens", "rehit_tokens", "preemptions", "recomputed_tokens",
    "steps", "stalled_steps", "pauses",
)  # fmt: skip


def request_columns(requests: Requests) -> dict[str, Any]:
    """Arrow columns of the requests table: identity, outcome, and every field of the evidence contract."""
    rows, labels = requests.rows, requests.labels
    columns: dict[str, Any] = {name: pa.array(rows[name]) for name in _COUNTS}
    for name, codes in (("tenant", labels.tenants), ("tier", labels.tiers), ("outcome", labels.outcomes)):
        columns[name] = text(rows[name], codes)
    columns["stage"] = text(rows["stage"], labels.stages)
    columns["reason"] = text(rows["reason"], labels.reasons)
    columns["measured"] = pa.array(requests.measured)
    columns["cold_start"] = pa.array(requests.cold)
    columns["arrival_ms"] = pa.array(ms(rows["arrival_ns"]))
    columns["ended_ms"] = pa.array(ms(rows["ended_ns"]))
    for name in ("first_token", "last_token"):
        absent = rows[f"{name}_ns"] == MISSING
        _put(columns, f"{name}_ms", pa.array(ms(rows[f"{name}_ns"]), mask=absent), [(Absence.FAILED, absent)])
    for name, column in requests.columns.items():
        _put(columns, name, _values(column), column.absent)
    _causes(columns, rows, requests)
    _degraded(columns, rows, requests)
    return columns


def write_requests(folder: Path, requests: Requests, metadata: Mapping[str, str]) -> Path:
    """Write ``requests.parquet`` into ``folder``."""
    writer = TableWriter(folder / "requests.parquet", metadata)
    for start in range(0, max(len(requests), 1), ROWS_PER_GROUP):
        writer.write(request_columns(requests.part(start, start + ROWS_PER_GROUP)))
    writer.close()
    return writer.path


def write_outputs(
    folder: Path, outputs: Mapping[int, list[int]], ties: Mapping[int, list[int]], metadata: Mapping[str, str]
) -> Path:
    """Write ``outputs.parquet``: token ids of finished requests and positions where two logits nearly tied."""
    order = sorted(outputs)
    writer = TableWriter(folder / "outputs.parquet", metadata)
    writer.write(
        {
            "request": pa.array(order, pa.int64()),
            "token_ids": pa.array([outputs[request] for request in order], pa.list_(pa.int32())),
            "tie_positions": pa.array([ties.get(request, []) for request in order], pa.list_(pa.int32())),
        }
    )
    writer.close()
    return writer.path


def _values(column: Column) -> Any:
    whole = column.unit in ("tokens", "bytes")
    return pa.array(column.values.astype(np.int64) if whole else column.values, mask=~column.present)


def _put(columns: dict[str, Any], name: str, values: Any, absent: Any) -> None:
    columns[name] = values
    if absent:
        columns[f"{name}_absence"] = absence_column(absent, len(values))


def _causes(columns: dict[str, Any], rows: Mapping[str, Ints], requests: Requests) -> None:
    causes = requests.labels.causes
    gap: Mask = rows["longest_gap_ns"] == MISSING
    stall: Mask = rows["stall_cause"] == MISSING
    _put(columns, "longest_gap_token", pa.array(rows["longest_gap_index"], mask=gap), [(Absence.NOT_APPLICABLE, gap)])
    _put(columns, "longest_gap_cause", text(rows["longest_gap_cause"], causes), [(Absence.NOT_APPLICABLE, gap)])
    _put(columns, "stall_cause", text(rows["stall_cause"], causes), [(Absence.NOT_APPLICABLE, stall)])


def _degraded(columns: dict[str, Any], rows: Mapping[str, Ints], requests: Requests) -> None:
    """What was changed about a request, and the score that the user gives answers to such requests."""
    whole = ~requests.degraded
    _put(columns, "degraded", text(rows["degraded"], requests.labels.changes), [(Absence.NOT_APPLICABLE, whole)])
    declared = requests.degraded_quality
    scores = np.full(len(requests), 0.0 if declared is None else declared)
    unknown: Mask = requests.degraded if declared is None else np.zeros(len(requests), dtype=np.bool_)
    absent = [(Absence.NOT_APPLICABLE, whole), (Absence.NOT_MEASURED, unknown)]
    _put(columns, "degraded_quality", pa.array(scores, mask=whole | unknown), absent)
