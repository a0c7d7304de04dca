"""One request of a log, how its fields are read, and the trace file that a log becomes."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from scheduler_core.types.errors import InputError, Problem
from scheduler_core.types.time import NS_PER_S, Ns


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """A request as a log knows it; one that failed has no output.

    ``blocks`` are identities of shared beginnings, each of ``block_size`` tokens (absent: `BLOCK_SIZE`; one size for a
    whole log), ``cached_tokens`` what the server found in its prefix cache. One that names ``parents`` (ids of others)
    is sent ``think_ns`` after the last of them has ended; its arrival then only says where it stands in the order.
    ``place`` is where it stands in the log.
    """

    arrival_ns: Ns
    prompt_tokens: int
    output_tokens: int
    tenant: str = ""
    session: str = ""
    blocks: tuple[int, ...] = ()
    block_size: int | None = None
    cached_tokens: int | None = None
    id: str = ""
    parents: tuple[str, ...] = ()
    think_ns: Ns = 0
    place: str = ""


class UnusableRowError(Exception):
    """A row is no usable request; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a log: where it stands, and what makes its request with the salt of block identities.

    ``make`` raises `UnusableRowError` when the row is no usable request.
    """

    place: str
    make: Callable[[bytes], LoggedRequest]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """How many rows were no usable request for one reason, and where the first of them stands."""

    rows: int
    first: str

    def __str__(self) -> str:
        return self.first if self.rows == 1 else f"{self.rows} rows, the first {self.first}"


BLOCK_SIZE = 16
"""Tokens behind each block identity."""


@dataclass(frozen=True)
class ReadLog:
    """The requests of a log in order of arrival, and the rows that said nothing usable, by reason."""

    requests: tuple[LoggedRequest, ...]
    skipped: dict[str, LeftOut]

    @property
    def columns(self) -> dict[str, str]:
        """Columns of the trace file beyond the plain ones."""
        found = {}
        for name in ("tenant", "session"):
            if any(getattr(request, name) for request in self.requests):
                found[name] = name
        if self.observed_hit_share is not None:
            found["cached_tokens"] = "cached_tokens"
        if any(request.blocks for request in self.requests):
            found["prefix_blocks"] = "prefix_blocks"
        if any(request.parents for request in self.requests):
            found |= {"id": "id", "parents": "parents", "think": "think_s"}
        return found

    @property
    def reading(self) -> dict[str, Any]:
        """The options of `spec.workload.Trace` that read `lines`."""
        found: dict[str, Any] = {"format": "jsonl", "time_unit": "s", "columns": self.columns}
        return found | ({} if self.block_size is None else {"block_size": self.block_size})

    @property
    def block_size(self) -> int | None:
        """Tokens behind each block identity; None where there are no identities."""
        with_blocks = next((request for request in self.requests if request.blocks), None)
        return None if with_blocks is None else with_blocks.block_size or BLOCK_SIZE

    @property
    def observed_hit_share(self) -> float | None:
        """Share of the prompt tokens that the server found in its prefix cache; None where the log does not say."""
        known = [request for request in self.requests if request.cached_tokens is not None]
        prompts = sum(request.prompt_tokens for request in known)
        return sum(request.cached_tokens or 0 for request in known) / prompts if prompts else None

    def lines(self) -> Iterable[str]:
        """JSON lines with arrival in seconds from the first request."""
        start = self.requests[0].arrival_ns if self.requests else 0
        columns = self.columns
        for request in self.requests:
            row: dict[str, Any] = {
                "arrival_s": (request.arrival_ns - start) / NS_PER_S,
                "prompt_tokens": request.prompt_tokens,
                "output_tokens": request.output_tokens,
            }
            row |= {name: getattr(request, name) for name in ("tenant", "session", "cached_tokens") if name in columns}
            if "prefix_blocks" in columns:
                row["prefix_blocks"] = list(request.blocks)
            if "parents" in columns:
                waits = request.think_ns / NS_PER_S
                row |= {"id": request.id, "parents": list(request.parents), "think_s": waits}
            yield json.dumps(row)


def in_order(found: Iterable[LoggedRequest], skipped: dict[str, LeftOut], source: str) -> ReadLog:
    """The log's requests by arrival; `InputError` when there are none."""
    requests = tuple(sorted(found, key=lambda request: request.arrival_ns))
    if not requests:
        reasons = ", ".join(f"{reason}: {left}" for reason, left in skipped.items()) or "no rows"
        raise InputError([Problem(source, f"holds no usable request ({reasons})")])
    return ReadLog(requests, skipped)


def count(row: Mapping[str, Any], name: str) -> int:
    """A whole number of tokens."""
    value = row.get(name)
    if value is None:
        raise UnusableRowError(f"rows without {name}")
    try:
        number = int(value)
    except (TypeError, ValueError):
        raise UnusableRowError(f"rows whose {name} is no number") from None
    if number < 0:
        raise UnusableRowError(f"rows whose {name} is negative")
    return number


def instant(row: Mapping[str, Any], name: str) -> Ns:
    """Epoch seconds, or a wall-clock time with or without a zone (then UTC)."""
    value = row.get(name)
    if isinstance(value, int | float) and value == value and abs(value) < 1e12:
        return round(value * NS_PER_S)
    try:
        at = datetime.fromisoformat(str(value))
    except ValueError:
        raise UnusableRowError(f"rows whose {name} is no time") from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return round(at.timestamp() * NS_PER_S)
