"""Append-only evidence on disk: closed, numbered segments of JSON lines.

A segment is written under ``NAME.partial``, flushed to the disk and renamed when it is full, so a file without that
suffix is always whole. Its first line is a header; the number, run and attempt in it let a reader refuse a gap, a
repetition or a foreign file.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from scheduler_core.files import PARTIAL, partial_path
from scheduler_core.types.errors import CallerError, InputError, Problem
from scheduler_core.types.records import KINDS, SCHEMA, Record, RunStarted, decode

_encoded = msgspec.json.Encoder().encode
_decoded = msgspec.json.Decoder().decode
_FIELDS = {cls: tuple(item.name for item in fields(cls)) for cls in KINDS.values()}


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A closed segment: its number (from 1), file, size, records without the header, and digest."""

    number: int
    path: Path
    bytes: int
    records: int
    sha256: str


def line_of(record: Record) -> bytes:
    """The record's line of JSON, newline included; equal to that of ``records.encode`` without its deep copy."""
    values: dict[str, Any] = {"kind": record.kind}
    for name in _FIELDS[type(record)]:
        values[name] = getattr(record, name)
    return _encoded(values) + b"\n"


class SegmentWriter:
    """A sink that writes numbered segments into ``folder`` and reports each one that it closes.

    The first record must be `RunStarted`: run and attempt of the headers come from it.
    """

    def __init__(
        self, folder: Path, *, records_per_segment: int, on_closed: Callable[[SegmentInfo], None] | None = None
    ) -> None:
        if records_per_segment < 1:
            raise CallerError(f"records_per_segment is {records_per_segment}, it must be at least 1")
        self._folder = folder
        self._limit = records_per_segment
        self._on_closed = on_closed
        self._number = 0
        self._count = 0
        self._bytes = 0
        self._digest = hashlib.sha256()
        self._stream: BinaryIO | None = None
        self._head: dict[str, Any] | None = None

    def write(self, record: Record) -> None:
        """Append one record; closes the segment when it is full."""
        if self._head is None:
            if not isinstance(record, RunStarted):
                raise CallerError(f"the first record of a run is run_started, got {record.kind}")
            self._head = {"schema": SCHEMA, "run": record.run, "attempt": record.attempt}
        if self._stream is None:
            self._open()
        self._append(line_of(record))
        self._count += 1
        if self._count >= self._limit:
            self._close_segment()

    def close(self) -> None:
        """Close the last segment; writing again opens the next one."""
        if self._stream is not None:
            self._close_segment()

    def _open(self) -> None:
        self._number += 1
        self._count = 0
        self._bytes = 0
        self._digest = hashlib.sha256()
        self._stream = partial_path(self._path()).open("wb")
        self._append(json.dumps({**(self._head or {}), "number": self._number}).encode() + b"\n")

    def _append(self, line: bytes) -> None:
        assert self._stream is not None
        self._stream.write(line)
        self._digest.update(line)
        self._bytes += len(line)

    def _path(self) -> Path:
        return self._folder / f"segment-{self._number:06d}.jsonl"

    def _close_segment(self) -> None:
        assert self._stream is not None
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()
        self._stream = None
        path = self._path()
        partial_path(path).replace(path)
        if self._on_closed is not None:
            self._on_closed(SegmentInfo(self._number, path, self._bytes, self._count, self._digest.hexdigest()))


def read_records(paths: Iterable[Path], *, on_torn: Callable[[Problem], None] | None = None) -> Iterator[Record]:
    """Records of consecutive segments in order, the first numbered 1.

    An unfinished last line is what a kill leaves behind: in a ``.partial`` segment it is reported to ``on_torn`` and
    reading ends there. Anything else unreadable, missing, repeated or foreign is an `InputError` naming the line.
    """
    run: tuple[str, int] | None = None
    for number, path in enumerate(paths, start=1):
        with path.open("rb") as stream:
            head = _header(path, stream.readline())
            if head.get("number") != number:
                raise InputError([Problem(str(path), f"is segment {head.get('number')}, segment {number} was due")])
            of_run = (head.get("run", ""), head.get("attempt", 0))
            if run is not None and of_run != run:
                raise InputError([Problem(str(path), f"belongs to {of_run}, the segments before it to {run}")])
            run = of_run
            yield from _records(path, stream, on_torn)


def _header(path: Path, line: bytes) -> dict[str, Any]:
    try:
        head = json.loads(line)
    except ValueError:
        head = None
    if not isinstance(head, dict) or head.get("schema") != SCHEMA:
        found = head.get("schema") if isinstance(head, dict) else None
        raise InputError([Problem(f"{path} line 1", f"schema is {found!r}, this reader knows {SCHEMA!r}")])
    return head


def _records(path: Path, stream: BinaryIO, on_torn: Callable[[Problem], None] | None) -> Iterator[Record]:
    for place, line in enumerate(stream, start=2):
        if not line.endswith(b"\n"):
            problem = Problem(f"{path} line {place}", "the line is unfinished; the records end before it")
            if path.suffix != PARTIAL:
                raise InputError([problem])
            if on_torn is not None:
                on_torn(problem)
            return
        try:
            yield decode(_decoded(line))
        except (msgspec.DecodeError, ValueError, TypeError) as error:
            raise InputError([Problem(f"{path} line {place}", f"not a record: {error}")]) from None
