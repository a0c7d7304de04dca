"""The arrival plan: a frozen workload, replayed identically by every arm."""

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from scheduler_core.files import whole
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.errors import InputError, Problem

FORMAT = "headway-plan/1"


@dataclass(frozen=True)
class ArrivalPlan:
    """Requests in order of index, with what their integers mean.

    ``block_size`` is the number of tokens behind each id of ``prefix_blocks``. ``notes`` say where the figures come
    from (attribution, rules applied), ``observed_hit_share`` is the share of the prompt tokens that the server which
    logged the traffic found in its prefix cache, where known; neither enters the digest.
    """

    requests: tuple[PlannedRequest, ...]
    block_size: int
    notes: tuple[str, ...] = ()
    observed_hit_share: float | None = None

    @cached_property
    def digest(self) -> str:
        """Hex digest over the canonical rows; the same in every process and on every machine."""
        digest = hashlib.blake2b(f"{FORMAT}|{self.block_size}\n".encode(), digest_size=16)
        for row in self._rows():
            digest.update(row.encode())
            digest.update(b"\n")
        return digest.hexdigest()

    @property
    def prompt_tokens(self) -> int:
        """Sum of prompt lengths."""
        return sum(request.prompt_tokens for request in self.requests)

    @property
    def output_tokens(self) -> int:
        """Sum of true output lengths."""
        return sum(request.output_tokens for request in self.requests)

    def _rows(self) -> Iterator[str]:
        for r in self.requests:
            values = [r.index, r.arrival_ns, r.prompt_tokens, r.output_tokens, r.output_limit, r.seed, r.tenant]
            values += [r.tier, r.session, r.turn, _written(r.after), list(r.prefix_blocks), r.priority]
            if r.cancel_ns is not None or r.group is not None:
                values.append(r.cancel_ns)
            if r.group is not None:
                values.append(r.group)
            yield json.dumps(values, separators=(",", ":"), ensure_ascii=True)

    def write(self, path: Path) -> None:
        """Write to ``path`` (gzip of JSON lines), whole or not at all."""
        head = {"format": FORMAT, "block_size": self.block_size, "digest": self.digest, "notes": list(self.notes)}
        if self.observed_hit_share is not None:
            head["observed_hit_share"] = self.observed_hit_share
        with (
            whole(path) as partial,
            partial.open("wb") as raw,
            gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as stream,
        ):
            stream.write(json.dumps(head).encode() + b"\n")
            for row in self._rows():
                stream.write(row.encode() + b"\n")

    @classmethod
    def read(cls, path: Path) -> "ArrivalPlan":
        """Read a plan back; `InputError` when it is no plan or its rows do not match its digest."""
        head, rows = _read_lines(path)
        if head.get("format") != FORMAT:
            raise InputError([Problem(str(path), f"format is {head.get('format')!r}, expected {FORMAT!r}")])
        try:
            requests = tuple(_request(*row) for row in rows)
            plan = cls(requests, head["block_size"], tuple(head["notes"]), head.get("observed_hit_share"))
            intact = plan.digest == head["digest"]
        except (LookupError, TypeError, ValueError) as error:
            raise InputError([Problem(str(path), f"not an arrival plan: {error!r}")]) from None
        if not intact:
            raise InputError([Problem(str(path), "its rows do not match its digest; the file is damaged")])
        return plan


def _written(after: tuple[int, ...]) -> int | list[int] | None:
    """What a request waits for, as rows have it: nothing, one number, or a list of several."""
    return None if not after else after[0] if len(after) == 1 else list(after)


def _request(*values: Any) -> PlannedRequest:
    """One row of a plan file; `ValueError` or `TypeError` when it is none."""
    index, arrival_ns, prompt, output, limit, seed, tenant, tier, session, turn, after, *rest = values
    prefix_blocks, priority, cancel_ns, group = (*rest, None, None)[:4] if len(rest) <= 4 else rest
    return PlannedRequest(
        index,
        arrival_ns,
        prompt,
        output,
        limit,
        seed,
        tenant,
        tier,
        session,
        turn,
        () if after is None else (after,) if isinstance(after, int) else tuple(after),
        tuple(prefix_blocks),
        priority,
        cancel_ns,
        group,
    )


def _read_lines(path: Path) -> tuple[dict[str, Any], list[list[Any]]]:
    """The head and the rows of a plan file as plain JSON data."""
    try:
        with gzip.open(path, "rt", encoding="ascii") as stream:
            head = json.loads(next(stream))
            rows = [json.loads(line) for line in stream]
    except (OSError, EOFError, StopIteration, ValueError, zlib.error) as error:
        raise InputError([Problem(str(path), f"not an arrival plan: {error}")]) from None
    if not isinstance(head, dict) or not all(isinstance(row, list) for row in rows):
        raise InputError([Problem(str(path), "not an arrival plan: its lines are not a head and rows")])
    return head, rows
