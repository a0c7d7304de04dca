"""One request of a log, and the trace file that a log becomes."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from scheduler_core.types.errors import InputError, Problem
from scheduler_core.types.time import NS_PER_S, Ns


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """A request as a log knows it. ``failed`` ones have no output; ``blocks`` are identities of shared beginnings."""

    arrival_ns: Ns
    prompt_tokens: int
    output_tokens: int
    tenant: str = ""
    session: str = ""
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True)
class ReadLog:
    """The requests of a log in order of arrival, and how many rows said nothing usable, by reason."""

    requests: tuple[LoggedRequest, ...]
    skipped: dict[str, int]

    @property
    def columns(self) -> dict[str, str]:
        """Columns of the trace file beyond the plain ones."""
        found = {}
        for name in ("tenant", "session"):
            if any(getattr(request, name) for request in self.requests):
                found[name] = name
        if any(request.blocks for request in self.requests):
            found["prefix_blocks"] = "prefix_blocks"
        return found

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
            row |= {name: getattr(request, name) for name in ("tenant", "session") if name in columns}
            if "prefix_blocks" in columns:
                row["prefix_blocks"] = list(request.blocks)
            yield json.dumps(row)


def in_order(found: Iterable[LoggedRequest], skipped: dict[str, int], source: str) -> ReadLog:
    """The log's requests by arrival; `InputError` when there are none."""
    requests = tuple(sorted(found, key=lambda request: request.arrival_ns))
    if not requests:
        reasons = ", ".join(f"{count} {reason}" for reason, count in skipped.items()) or "no rows"
        raise InputError([Problem(source, f"holds no usable request ({reasons})")])
    return ReadLog(requests, skipped)
