"""Readers of logs by kind."""

from collections.abc import Callable, Iterator
from pathlib import Path

from scheduler_core.types.errors import InputError, Problem
from scheduler_core.workload.logs.dynamo import dynamo
from scheduler_core.workload.logs.gateways import litellm
from scheduler_core.workload.logs.rows import ReadLog, Row, UnusableRowError, in_order
from scheduler_core.workload.logs.sglang import sglang
from scheduler_core.workload.logs.spans import otlp
from scheduler_core.workload.logs.vllm import vllm

READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    "otlp": otlp,
    "litellm": litellm,
    "vllm": vllm,
    "sglang": sglang,
    "dynamo": dynamo,
}


def read_log(path: Path, kind: str, *, salt: bytes) -> ReadLog:
    """The requests of a log. ``salt`` keys the block identities of prompt text and token ids.

    Raises:
        InputError: the file cannot be read, is of another kind, or holds no usable request.
    """
    reader = READERS.get(kind)
    if reader is None:
        raise InputError([Problem("format", f"{kind!r} is not one of {', '.join(READERS)}")])
    skipped: dict[str, int] = {}
    found = []
    try:
        for row in reader(path):
            try:
                found.append(row(salt))
            except UnusableRowError as reason:
                skipped[str(reason)] = skipped.get(str(reason), 0) + 1
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InputError([Problem(str(path), f"cannot be read: {error}")]) from None
    return in_order(found, skipped, str(path))
