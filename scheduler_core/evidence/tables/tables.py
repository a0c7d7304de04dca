"""The evidence tables on disk: requests, steps and gaps as Parquet, units in the column names.

Column ``X`` whose value may be absent has ``X_absence`` beside it, which holds the reason exactly where ``X`` is null.
The schema version, run, attempt and arm ride in the file's metadata.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from scheduler_core.evidence.columns import MISSING, Codes, IntRows, Ints
from scheduler_core.evidence.fold.drafts import DRAFT_INTS
from scheduler_core.evidence.fold.layout import CHUNK_INTS, GAP_INTS, STEP_INTS, Labels
from scheduler_core.evidence.fold.spread import SPREAD_INTS
from scheduler_core.evidence.schema import Absence
from scheduler_core.files import partial_path
from scheduler_core.types.errors import InputError, Problem
from scheduler_core.types.time import NS_PER_MS

TABLES_SCHEMA = "headway-tables/1"
ROWS_PER_GROUP = 16_384
_VERSION_KEY = b"headway_schema"
_TEXT = pa.dictionary(pa.int32(), pa.string())
Mask = npt.NDArray[np.bool_]


def ms(values: Ints) -> npt.NDArray[np.float64]:
    """Milliseconds of integer nanoseconds: the one place where tables convert."""
    return values / NS_PER_MS


def text(codes: Ints, values: Codes) -> Any:
    """Dictionary-encoded strings of ``codes``; null where `MISSING`."""
    absent = codes == MISSING
    indices = pa.array(np.where(absent, 0, codes).astype(np.int32), mask=absent)
    return pa.DictionaryArray.from_arrays(indices, pa.array(values.values or [""], pa.string()))


def absence_column(reasons: Sequence[tuple[Absence, Mask]], rows: int) -> Any:
    """The ``X_absence`` column: the first reason whose mask holds, null where the value is there."""
    codes = np.full(rows, MISSING, dtype=np.int64)
    labels = Codes()
    for reason, mask in reasons:
        codes[(codes == MISSING) & mask] = labels.code(reason.value)
    return text(codes, labels)


def step_columns(rows: Mapping[str, Ints], labels: Labels) -> dict[str, Any]:
    """Arrow columns of the steps table."""
    known = ("planned", "available", "compute", "work", "path", "idle", "idle_empty")
    columns: dict[str, Any] = {}
    for name in STEP_INTS:
        stem = name.removesuffix("_ns")
        if stem in known:
            columns[f"{stem}_ms"] = pa.array(ms(rows[name]))
        elif name == "idle_cause":
            absent = rows[name] == MISSING
            columns[name] = text(rows[name], labels.causes)
            columns["idle_cause_absence"] = absence_column([(Absence.NOT_APPLICABLE, absent)], len(absent))
        elif name == "device_bytes" or name in (*SPREAD_INTS, *DRAFT_INTS):
            absent = rows[name] == MISSING
            values, unit = (ms(rows[name]), "_ms") if name.endswith("_ns") else (rows[name], "")
            reason = Absence.NOT_MEASURED if name == "device_bytes" else Absence.NOT_APPLICABLE
            columns[f"{stem}{unit}"] = pa.array(values, mask=absent)
            columns[f"{stem}{unit}_absence"] = absence_column([(reason, absent)], len(absent))
        else:
            columns[name] = pa.array(rows[name])
    return columns


def gap_columns(rows: Mapping[str, Ints], labels: Labels) -> dict[str, Any]:
    """Arrow columns of the gaps table: one row per gap between consecutive tokens of a request."""
    return {
        "request": pa.array(rows["request"]),
        "token": pa.array(rows["token"]),
        "at_ms": pa.array(ms(rows["at_ns"])),
        "gap_ms": pa.array(ms(rows["gap_ns"])),
        "cause": text(rows["cause"], labels.causes),
    }


def chunk_columns(rows: Mapping[str, Ints], labels: Labels) -> dict[str, Any]:
    """Arrow columns of the chunks table: one row per chunk of tokens that came together; a first one ends no gap."""
    return {
        "request": pa.array(rows["request"]),
        "chunk": pa.array(rows["chunk"]),
        "at_ms": pa.array(ms(rows["at_ns"])),
        "tokens": pa.array(rows["tokens"]),
        "gap_ms": pa.array(ms(rows["gap_ns"]), mask=rows["gap_ns"] == MISSING),
    }


class TableWriter:
    """Writes a table group by group under a temporary name; `close` renames it."""

    def __init__(self, path: Path, metadata: Mapping[str, str]) -> None:
        self.path = path
        self._partial = partial_path(path)
        self._metadata = {_VERSION_KEY: TABLES_SCHEMA.encode()}
        self._metadata |= {key.encode(): value.encode() for key, value in metadata.items()}
        self._writer: Any = None

    def write(self, columns: Mapping[str, Any]) -> None:
        """Append rows given as Arrow columns of equal length."""
        table = pa.table(dict(columns)).unify_dictionaries()
        table = table.cast(pa.schema([_plain(item) for item in table.schema]))
        if self._writer is None:
            schema = table.schema.with_metadata(self._metadata)
            self._writer = pq.ParquetWriter(self._partial, schema, compression="zstd")
        self._writer.write_table(table.replace_schema_metadata(self._metadata))

    def close(self) -> None:
        """Finish the file and give it its name."""
        if self._writer is not None:
            self._writer.close()
            self._partial.replace(self.path)
            pa.default_memory_pool().release_unused()  # what its groups took goes back to the system


def _plain(item: Any) -> Any:
    return pa.field(item.name, _TEXT) if pa.types.is_dictionary(item.type) else item


class SpillingTable:
    """Takes integer rows and writes them to ``writer`` whenever ``ROWS_PER_GROUP`` have come together."""

    def __init__(self, names: tuple[str, ...], convert: Any, labels: Labels, writer: TableWriter) -> None:
        self._rows = IntRows(names)
        self._convert = convert
        self._labels = labels
        self._writer = writer
        self._held = 0

    def append(self, *values: int) -> None:
        """Add a row in the order of the names."""
        self._rows.append(*values)
        self._hold(1)

    def extend(self, rows: Ints) -> None:
        """Add rows given as an array of (row, name)."""
        self._rows.extend(rows)
        self._hold(len(rows))

    def _hold(self, more: int) -> None:
        self._held += more
        if self._held >= ROWS_PER_GROUP:
            self._spill()

    def close(self) -> None:
        """Write the rest, an empty table too, and finish the file."""
        self._spill()
        self._writer.close()

    def _spill(self) -> None:
        self._writer.write(self._convert(self._rows.take(), self._labels))
        self._held = 0


def steps_table(folder: Path, labels: Labels, metadata: Mapping[str, str]) -> SpillingTable:
    """The growing ``steps.parquet`` of ``folder``."""
    return SpillingTable(STEP_INTS, step_columns, labels, TableWriter(folder / "steps.parquet", metadata))


def gaps_table(folder: Path, labels: Labels, metadata: Mapping[str, str]) -> SpillingTable:
    """The growing ``gaps.parquet`` of ``folder``."""
    return SpillingTable(GAP_INTS, gap_columns, labels, TableWriter(folder / "gaps.parquet", metadata))


def chunks_table(folder: Path, labels: Labels, metadata: Mapping[str, str]) -> SpillingTable:
    """The growing ``chunks.parquet`` of ``folder``."""
    return SpillingTable(CHUNK_INTS, chunk_columns, labels, TableWriter(folder / "chunks.parquet", metadata))


def open_table(path: Path) -> Any:
    """The Parquet file at ``path`` as a `pyarrow.parquet.ParquetFile`; `InputError` for a foreign or newer one."""
    try:
        file = pq.ParquetFile(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise InputError([Problem(str(path), f"not a Parquet table: {error}")]) from None
    found = (file.schema_arrow.metadata or {}).get(_VERSION_KEY, b"").decode()
    if found != TABLES_SCHEMA:
        raise InputError([Problem(str(path), f"schema is {found or 'missing'}, this reader knows {TABLES_SCHEMA}")])
    return file


def read_table(path: Path, columns: Sequence[str] | None = None) -> Any:
    """The table at ``path`` (some of its columns) as a `pyarrow.Table`, checked by `open_table`."""
    return open_table(path).read(columns=list(columns) if columns is not None else None)
