"""Log files, plain or gzip, as JSON objects or as lines of text."""

import gzip
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from scheduler_core.types.errors import InputError, Problem

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_GZIP = b"\x1f\x8b"
_SPACE = re.compile(r"[ \t\n\r]*")
_NEWLINE = "\n"
_DECODER = json.JSONDecoder()


def objects(path: Path) -> Iterator[tuple[str, Any]]:
    """The JSON objects of a file with their places: one a line, or one whole value, or the items of one list.

    Lines are read one at a time. A value over several lines has to be read whole; it is told by its first line, which
    is no JSON by itself.

    Raises:
        InputError: a line is not JSON, or not text.
    """
    with _opened(path) as file:
        first = True
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                item = json.loads(line)
            except ValueError as error:
                if not first:
                    raise InputError([Problem(f"line {number}", f"not JSON: {error}")]) from None
                yield from _whole(b"\n" * (number - 1) + line + file.read())
                return
            first = False
            if isinstance(item, list):
                yield from ((f"line {number}, item {count}", part) for count, part in enumerate(item, start=1))
            else:
                yield f"line {number}", item


def _whole(data: bytes) -> Iterator[tuple[str, Any]]:
    """The items of a list over several lines, each with the line it begins in, or the one value of the file."""
    try:
        text = data.decode("utf-8-sig")
        at = _after_space(text, 0)
        if text[at : at + 1] == "[":
            yield from _items(text, at + 1)
        else:
            yield f"line {text.count(_NEWLINE, 0, at) + 1}", json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError([Problem(f"line {error.lineno}", f"not JSON: {error.msg}")]) from None
    except ValueError as error:
        raise InputError([Problem("line 1", f"not JSON: {error}")]) from None


def _items(text: str, at: int) -> Iterator[tuple[str, Any]]:
    """The items of the list that begins before ``at``, one at a time."""
    line, passed, at = 1, 0, _after_space(text, at)
    more = text[at : at + 1] != "]"
    while more:
        line, passed = line + text.count(_NEWLINE, passed, at), at
        item, at = _DECODER.raw_decode(text, at)
        yield f"line {line}", item
        at = _after_space(text, at)
        more = text[at : at + 1] == ","
        at = _after_space(text, at + more)
    if text[at : at + 1] != "]" or text[at + 1 :].strip():
        raise json.JSONDecodeError("expecting ',' or the end of the list", text, at)


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match is not None else at


def plain_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Lines of a server's log with their places, one at a time, without the colours of a terminal.

    What is no UTF-8 is replaced.
    """
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            yield f"line {number}", _COLOUR.sub("", line.decode("utf-8", "replace")).rstrip("\r\n")


@contextmanager
def _opened(path: Path) -> Iterator[BufferedIOBase]:
    """The file's bytes, unpacked."""
    with path.open("rb") as raw:
        compressed = raw.read(len(_GZIP)) == _GZIP
    with gzip.open(path) if compressed else path.open("rb") as file:
        yield file
