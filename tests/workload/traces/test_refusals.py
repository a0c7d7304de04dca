"""Files that cannot be used: each is refused as a whole, with line and reason, and never with a traceback."""

import bz2
import gzip
import io
import json
import lzma
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.spec.workload import Trace
from scheduler_core.types.errors import InputError
from scheduler_core.workload.traces.data import TraceData
from scheduler_core.workload.traces.inspection import inspect, refusal_report
from scheduler_core.workload.traces.lines import LONGEST_LINE
from scheduler_core.workload.traces.reader import read_trace

HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROW = b"2023-11-16 18:15:46.6805900,374,44\n"
GOOD = HEADER + ROW


def refusal(content: bytes, **options: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        inspect(io.BytesIO(content), **options)
    return caught.value


def zipped() -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("conv.csv", GOOD)
    return target.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "file: is empty"),
        (b"\n\n  \n", "file: has no rows, only empty lines"),
        (HEADER, "file: has a header but no rows"),
        (gzip.compress(GOOD, mtime=0), "file: is compressed with gzip; unpack it first (gunzip)"),
        (bz2.compress(GOOD), "file: is compressed with bzip2; unpack it first"),
        (lzma.compress(GOOD), "file: is compressed with xz; unpack it first"),
        (zipped(), "file: is a zip archive (or a spreadsheet)"),
        (b"PAR1\x15\x04", "file: is a Parquet file"),
        (GOOD.decode().encode("utf-16"), "file: is UTF-16 text; save it as UTF-8"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "file: is a Git LFS pointer"),
        (GOOD + b"2023-11-16 18:15:47,\xe9,4\n", "line 3: is not UTF-8 text (byte 0xe9 at place 21)"),
        (GOOD.replace(b"\n", b"\r"), "line 1: has a carriage return inside; save the file with LF or CRLF line ends"),
        (HEADER + b'"2023,1,2\n', "is not readable as CSV"),
        (HEADER + b'"2023"x,1,2\n', "line 2: is not readable as CSV"),
        (b"a,b,a\n1,2,3\n", "line 1: names a column twice: 'a'"),
        (b'[{"timestamp": 0}]', "line 1: is a JSON array; write one JSON object a line (JSON lines)"),
        (b'{\n "timestamp": 0\n}', "line 1: is not readable as JSON"),
        (b'{"timestamp": 0', "line 1: is not readable as JSON"),
        (b'{"a": 1, "a": 2}', "line 1: names a field twice: 'a'"),
        (b'{"a": ' + b"9" * 5000 + b"}", "line 1: is not readable as JSON"),
        (b'{"a": 1e99999999999999999999}', "line 1: is not readable as JSON"),
        (b'{"a": ' + b"[" * 100_000, "line 1: is not readable as JSON"),
        (b"x" * (LONGEST_LINE + 1), "line 1: is longer than 4 MiB; is this a trace?"),
        (HEADER + b"x" * (LONGEST_LINE + 1), "line 2: is longer than 4 MiB; is this a trace?"),
        (bytes(range(256)), "line 2: has a carriage return inside"),
    ],
)
def test_what_is_no_trace_is_refused(content: bytes, message: str) -> None:
    assert message in str(refusal(content))


@pytest.mark.parametrize("name", [".", "missing.csv", "a\x00b"])
def test_paths_that_cannot_be_opened(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be opened"):
        inspect(tmp_path / name)


def test_a_reading_error_is_a_refusal() -> None:
    class Broken(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            raise OSError(5, "Input/output error")

    with pytest.raises(InputError, match="cannot be read: Input/output error"):
        inspect(Broken())


def test_rows_without_a_usable_time_are_refused_by_line() -> None:
    """Times 0, none, 100, "200", -5 and NaN: nothing is repaired, nothing half-loaded."""
    times = ["0", None, "100", '"200"', "-5", "NaN"]
    lines = [
        "{"
        + ("" if time is None else f'"timestamp": {time}, ')
        + '"input_length": 9, "output_length": 3, "hash_ids": [1]}'
        for time in times
    ]
    error = refusal("\n".join(lines).encode())
    assert [(problem.where, problem.message) for problem in error.problems] == [
        ("line 2", "timestamp is missing"),
        ("line 4", "timestamp is '200', which is not a number"),
        ("line 5", "timestamp is -5; a time cannot be negative"),
        ("line 6", "timestamp is NaN, which is not a finite number"),
    ]
    assert refusal_report(error) == {
        "error": str(error),
        "rejected": [
            {"line": 2, "reason": "timestamp is missing"},
            {"line": 4, "reason": "timestamp is '200', which is not a number"},
            {"line": 5, "reason": "timestamp is -5; a time cannot be negative"},
            {"line": 6, "reason": "timestamp is NaN, which is not a finite number"},
        ],
    }


def test_the_first_row_may_be_the_bad_one() -> None:
    row = '{"timestamp": 0, "input_length": 9, "output_length": 3, "hash_ids": [1]}'
    bad = '{"input_length": 9, "output_length": 3, "hash_ids": [1]}'
    assert str(refusal(f"{bad}\n{row}".encode())) == "line 1: timestamp is missing"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b",374,44", "TIMESTAMP is missing"),
        (b"2023-11-16 18:15:47,,44", "ContextTokens is missing"),
        (b"2023-11-16 18:15:47,374,-1", "GeneratedTokens is -1; a count cannot be negative"),
        (b"2023-11-16 18:15:47,374.5,44", "ContextTokens is 374.5, which is not a whole number of tokens"),
        (b"2023-11-16 18:15:47,0,44", "ContextTokens is 0; an empty prompt cannot be sent"),
        (b"2023-11-16 18:15:47,inf,44", "ContextTokens is inf, which is not a finite number"),
        (b"2023-11-16 18:15:47,374", "has 2 values where the header has 3 columns"),
        (b"2023-11-16 18:15:47,374,44,9", "has 4 values where the header has 3 columns"),
        (b"2023-11-16 18:15:47+00:00,374,44", "with a zone where this format has none"),
    ],
)
def test_bad_rows_name_line_column_and_value(row: bytes, reason: str) -> None:
    (problem,) = refusal(GOOD + row + b"\n" + ROW).problems
    assert problem.where == "line 3"
    assert reason in problem.message


def test_many_bad_rows_are_listed_up_to_a_number_and_counted() -> None:
    error = refusal(GOOD + b"2023-11-16 18:15:47,x,1\n" * 8123)
    assert [problem.where for problem in error.problems[:2]] == ["line 3", "line 4"]
    assert len(error.problems) == 51
    assert str(error.problems[-1]) == "file: and 8073 more lines cannot be read, the last is line 8125"


def test_line_numbers_count_blank_and_quoted_lines() -> None:
    content = HEADER + b"\n" + ROW + b'"2023-11-16 18:15:47","374","44"\n\nbad,1,1\n'
    assert str(refusal(content)).startswith("line 6: TIMESTAMP is 'bad'")


def test_unknown_options_suggest_the_right_one() -> None:
    with pytest.raises(InputError, match="unknown key; did you mean 'time_unit'"):
        inspect(io.BytesIO(GOOD), timeunit="s")


def test_a_caller_stream_is_read_from_its_start_and_left_open() -> None:
    stream = io.BytesIO(GOOD)
    assert inspect(stream).rows == inspect(stream).rows == 1
    assert not stream.closed


FIELD = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.lists(st.integers()))
ROWS = st.lists(st.dictionaries(st.sampled_from(["timestamp", "input_length", "output_length", "hash_ids"]), FIELD))


def outcome(content: bytes) -> TraceData | None:
    """The rows, or None for a refusal with at least one problem; anything else fails the test."""
    try:
        return read_trace(io.BytesIO(content), Trace(file="given"))
    except InputError as error:
        assert error.problems and all(problem.message for problem in error.problems)
        return None


@settings(max_examples=120)
@given(st.one_of(st.binary(max_size=300), st.binary(max_size=100).map(lambda junk: GOOD + junk)))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    data = outcome(content)
    assert data is None or (len(data) >= 1 and data.prompts[0] >= 1)


@settings(max_examples=80)
@given(ROWS)
def test_any_json_rows_are_read_or_refused(rows: list[dict[str, Any]]) -> None:
    """Whatever is accepted is a plan's worth of whole, positive, ordered numbers."""
    data = outcome("\n".join(json.dumps(row) for row in rows).encode())
    if data is not None:
        assert list(data.arrivals_ns) == sorted(data.arrivals_ns)
        assert min(data.prompts) >= 1 and min(data.outputs) >= 1
        assert len(data) + len(data.rejected) == data.rows == len(rows)
