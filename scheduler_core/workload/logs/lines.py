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


def objects(path: Path) -> Iterator[Any]:
    """The JSON objects of a file: one whole value, or one a line."""
    with _opened(path, errors="strict") as file:
        text = file.read()
    try:
        data = json.loads(text)
        yield from data if isinstance(data, list) else [data]
        return
    except ValueError:
        pass
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise InputError([Problem(f"{path} line {number}", f"not JSON: {error}")]) from None


def plain_lines(path: Path) -> Iterator[str]:
    """Lines of a server's log, one at a time, without the colours of a terminal; what is no UTF-8 is replaced."""
    with _opened(path, errors="replace") as file:
        for line in file:
            yield _COLOUR.sub("", line).rstrip("\r\n")


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
