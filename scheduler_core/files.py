"""Writing files whole or not at all: under a temporary name beside the final one, renamed when complete."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PARTIAL = ".partial"


def partial_path(path: Path) -> Path:
    """The temporary name of ``path`` while it is being written."""
    return path.with_name(path.name + PARTIAL)


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """The temporary name to write to: at the end of the context it becomes ``path``, after an error it is removed."""
    partial = partial_path(path)
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write ``data`` to ``path`` as JSON. ``ValueError`` for NaN and infinity, which JSON has not."""
    with whole(path) as partial:
        partial.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file's content, read piece by piece."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
