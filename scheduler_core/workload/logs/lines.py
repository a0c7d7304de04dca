"""Log files, plain or gzip, as JSON objects or as lines of text."""

import gzip
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from scheduler_core.types.errors import InputError, Problem

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_GZIP = b"\x1f\x8b"


def objects(path: Path) -> Iterator[tuple[str, Any]]:
    """The JSON objects of a file with their places: one whole value or the items of one list, or one a line.

    Raises:
        InputError: a line is not JSON.
    """
    with _opened(path, errors="strict") as file:
        text = file.read()
    try:
        data = json.loads(text)
        items = data if isinstance(data, list) else [data]
        yield from ((f"item {number}", item) for number, item in enumerate(items, start=1))
        return
    except ValueError:
        pass
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                item = json.loads(line)
            except ValueError as error:
                raise InputError([Problem(f"line {number}", f"not JSON: {error}")]) from None
            yield f"line {number}", item


def plain_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Lines of a server's log with their places, one at a time, without the colours of a terminal.

    What is no UTF-8 is replaced.
    """
    with _opened(path, errors="replace") as file:
        for number, line in enumerate(file, start=1):
            yield f"line {number}", _COLOUR.sub("", line).rstrip("\r\n")


@contextmanager
def _opened(path: Path, *, errors: str) -> Iterator[TextIO]:
    with path.open("rb") as raw:
        compressed = raw.read(len(_GZIP)) == _GZIP
    if compressed:
        with gzip.open(path, "rt", encoding="utf-8", errors=errors) as file:
            yield file
    else:
        with path.open(encoding="utf-8", errors=errors) as file:
            yield file
