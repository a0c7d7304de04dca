"""Segments on disk: numbered, closed by rename, readable after a kill."""

import hashlib
import json
from pathlib import Path

import pytest

from scheduler_core.evidence.records.segments import SegmentInfo, SegmentWriter, line_of, read_records
from scheduler_core.types.errors import CallerError, InputError, Problem
from scheduler_core.types.records import RunFinished, encode
from tests.evidence.played import play

RECORDS = play({"policy": "vllm_v1"}, {"requests": 10})


def write(folder: Path, *, per_segment: int, close: bool = True) -> list[SegmentInfo]:
    closed: list[SegmentInfo] = []
    writer = SegmentWriter(folder, records_per_segment=per_segment, on_closed=closed.append)
    for record in RECORDS:
        writer.write(record)
    if close:
        writer.close()
    return closed


def test_records_read_back_equal(tmp_path: Path) -> None:
    closed = write(tmp_path, per_segment=7)
    assert [info.number for info in closed] == list(range(1, len(closed) + 1))
    assert sum(info.records for info in closed) == len(RECORDS)
    assert list(read_records(info.path for info in closed)) == RECORDS
    for info in closed:
        data = info.path.read_bytes()
        assert (info.bytes, info.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert not list(tmp_path.glob("*.partial"))


def test_lines_are_those_of_the_record_codec() -> None:
    assert all(json.loads(line_of(record)) == json.loads(json.dumps(encode(record))) for record in RECORDS)


def test_open_segment_has_a_partial_name_and_may_be_torn(tmp_path: Path) -> None:
    closed = write(tmp_path, per_segment=7, close=False)
    partial = next(tmp_path.glob("*.partial"))
    whole = partial.read_bytes() if partial.stat().st_size else b""
    partial.write_bytes(whole + b'{"kind": "st')
    if not whole:  # nothing was flushed yet: write the header that a flush would have
        head = {"schema": "headway-records/1", "run": "r", "attempt": 1, "number": len(closed) + 1}
        partial.write_bytes(json.dumps(head).encode() + b'\n{"kind": "st')
    torn: list[Problem] = []
    found = list(read_records([*(info.path for info in closed), partial], on_torn=torn.append))
    assert found == RECORDS[: len(found)]
    assert "unfinished" in torn[0].message


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda paths: [paths[0], *paths[2:]], "segment 2 was due"),
        (lambda paths: [paths[0], paths[0]], "is segment 1, segment 2 was due"),
        (lambda paths: paths[1:], "segment 1 was due"),
    ],
)
def test_gaps_and_repetitions_are_refused(damage: object, message: str, tmp_path: Path) -> None:
    paths = [info.path for info in write(tmp_path, per_segment=7)]
    with pytest.raises(InputError, match=message):
        list(read_records(damage(paths)))  # type: ignore[operator]


def test_damaged_and_newer_files_name_the_line(tmp_path: Path) -> None:
    path = write(tmp_path, per_segment=10_000)[0].path
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], b"not json\n", *lines[4:]]))
    with pytest.raises(InputError, match="line 4: not a record"):
        list(read_records([path]))
    path.write_bytes(lines[0].replace(b"records/1", b"records/9") + lines[1])
    with pytest.raises(InputError, match="headway-records/9"):
        list(read_records([path]))


def test_a_run_begins_with_its_start(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, records_per_segment=5)
    with pytest.raises(CallerError, match="run_started"):
        writer.write(RunFinished(0, True, "", 0, 0))
