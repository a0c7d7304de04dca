"""LLMServingSim's agentic workload form as requests: a row is a session of calls with tools between them.

Rows without ``sub_requests`` are single requests, and both stand in one file. Token ids, where given, become block
identities. Form: github.com/casys-kaist/LLMServingSim, ``workloads/README.md``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from scheduler_core.types.time import Ns
from scheduler_core.workload.logs.hashing import token_blocks
from scheduler_core.workload.logs.lines import objects
from scheduler_core.workload.logs.rows import BLOCK_SIZE, LoggedRequest, Row, UnusableRowError, count


def agentic(path: Path) -> Iterator[Row]:
    """Calls in the order of their sessions; each waits for the one before it, and for the tool between them.

    A session with an unusable call is left out as a whole: nobody knows when its later calls would be sent.
    """
    for number, (place, data) in enumerate(objects(path)):
        calls = data.get("sub_requests") if isinstance(data, dict) else None
        if not isinstance(calls, list) or not calls:
            yield Row(place, partial(_single, data, str(number)))
            continue
        session = _Session(str(data.get("session_id") or f"session {number}"), number, data, calls)
        for turn in range(len(calls)):
            yield Row(f"{place}, call {turn + 1}", partial(session.call, turn))


def _single(data: Any, name: str, salt: bytes) -> LoggedRequest:
    if not isinstance(data, dict):
        raise UnusableRowError("rows that are no objects")
    if "sub_requests" in data:
        raise UnusableRowError("sessions without calls")
    return _request(data, count(data, "arrival_time_ns"), name, salt)


class _Session:
    """One row with calls."""

    def __init__(self, name: str, number: int, row: Mapping[str, Any], calls: Sequence[Any]) -> None:
        self._name, self._number, self._row, self._calls = name, number, row, calls

    def call(self, turn: int, salt: bytes) -> LoggedRequest:
        """The call at ``turn``; `UnusableRowError` when any call of the session is unusable."""
        if self._fault:
            raise UnusableRowError(self._fault)
        request = _request(self._calls[turn], count(self._row, "arrival_time_ns"), f"{self._number}.{turn}", salt)
        if not turn:
            return replace(request, session=self._name)
        before = self._calls[turn - 1]
        think_ns = count(before, "tool_duration_ns") if "tool_duration_ns" in before else 0
        return replace(request, session=self._name, parents=(f"{self._number}.{turn - 1}",), think_ns=think_ns)

    @cached_property
    def _fault(self) -> str:
        """Why a call of the session is unusable; empty where none is."""
        try:
            for call in self._calls:
                _check(call)
        except UnusableRowError as reason:
            return str(reason)
        return ""


def _check(call: Any) -> None:
    if not isinstance(call, dict):
        raise UnusableRowError("sessions with a call that is no object")
    for name in ("input_toks", "output_toks", *(["tool_duration_ns"] if "tool_duration_ns" in call else [])):
        count(call, name)
    if isinstance(ids := call.get("input_tok_ids"), list):
        _token_ids(ids)


def _request(call: Mapping[str, Any], arrival_ns: Ns, name: str, salt: bytes) -> LoggedRequest:
    ids = call.get("input_tok_ids")
    return LoggedRequest(
        arrival_ns,
        count(call, "input_toks"),
        count(call, "output_toks"),
        blocks=token_blocks(_token_ids(ids), block_size=BLOCK_SIZE, salt=salt) if isinstance(ids, list) else (),
        id=name,
    )


def _token_ids(ids: Sequence[Any]) -> Sequence[int]:
    if not all(type(token) is int and 0 <= token < 1 << 64 for token in ids):
        raise UnusableRowError("rows whose input_tok_ids are not all whole numbers of 0 or more")
    return ids
