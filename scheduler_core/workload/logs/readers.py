"""Readers of logs by kind."""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from scheduler_core.types.errors import InputError, Problem
from scheduler_core.workload.logs.dynamo import dynamo
from scheduler_core.workload.logs.gateways import litellm
from scheduler_core.workload.logs.llmservingsim import agentic
from scheduler_core.workload.logs.rows import LeftOut, ReadLog, Row, UnusableRowError, in_order
from scheduler_core.workload.logs.sglang import sglang
from scheduler_core.workload.logs.spans import otlp
from scheduler_core.workload.logs.vllm import vllm

READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    "otlp": otlp,
    "litellm": litellm,
    "vllm": vllm,
    "sglang": sglang,
    "dynamo": dynamo,
    "llmservingsim-agentic": agentic,
}
TITLES = {
    "otlp": "OpenTelemetry GenAI spans",
    "litellm": "LiteLLM log",
    "vllm": "vLLM server log",
    "sglang": "SGLang request log",
    "dynamo": "Dynamo trace",
    "llmservingsim-agentic": "LLMServingSim sessions",
}
"""What each kind of log is, for people."""

_OTHER_FORM = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What a reader runs into where a part of a row is not what this kind of log has there."""


def read_log(path: Path, kind: str, *, salt: bytes, source: str = "") -> ReadLog:
    """The requests of a log. ``salt`` keys the block identities of prompt text and token ids.

    ``source`` is what problems call the file; its path where it is not given.

    Raises:
        InputError: the file cannot be read, is of another kind, or holds no usable request.
    """
    source = source or str(path)
    reader = READERS.get(kind)
    if reader is None:
        raise InputError([Problem("format", f"{kind!r} is not one of {', '.join(READERS)}")])
    skipped: dict[str, LeftOut] = {}
    found = []
    try:
        for row in reader(path):
            try:
                found.append(replace(row.make(salt), place=row.place))
                continue
            except UnusableRowError as error:
                reason = str(error)
            except _OTHER_FORM:
                reason = f"rows of another form than those of a {TITLES[kind]}"
            before = skipped.get(reason, LeftOut(0, row.place))
            skipped[reason] = replace(before, rows=before.rows + 1)
    except InputError as error:
        raise InputError([Problem(f"{source} {item.where}", item.message) for item in error.problems]) from None
    except (OSError, EOFError, zlib.error, *_OTHER_FORM) as error:
        raise InputError([Problem(source, f"cannot be read as a {TITLES[kind]}: {error}")]) from None
    return in_order(found, skipped, source)
