"""The rows of a trace, as compact columns in time order."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise

DIGEST_FORM = "headway-trace/1"
NOT_SAID = -1


@dataclass(frozen=True, slots=True)
class Labels:
    """A column of names: ``names[codes[row]]``."""

    names: tuple[str, ...]
    codes: "array[int]"

    def of(self, row: int) -> str:
        """The name of a row."""
        return self.names[self.codes[row]]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Prefix block ids of all rows: those of row ``r`` are ``ids[starts[r]:starts[r + 1]]``."""

    ids: "array[int]"
    starts: "array[int]"

    def of(self, row: int) -> tuple[int, ...]:
        """The block ids of a row."""
        return tuple(self.ids[self.starts[row] : self.starts[row + 1]])


@dataclass(frozen=True, slots=True)
class Parents:
    """Rows that each row waits for: those of row ``r`` are ``rows[starts[r]:starts[r + 1]]``; and its think time."""

    rows: "array[int]"
    starts: "array[int]"
    think_ns: "array[int]"

    def of(self, row: int) -> tuple[int, ...]:
        """The rows that a row waits for."""
        return tuple(self.rows[self.starts[row] : self.starts[row + 1]])


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row that is not played, by which rule."""

    line: int
    reason: str


@dataclass(frozen=True)
class TraceData:
    """Usable rows in time order.

    ``arrivals_ns`` count from the first usable row (all 0 when the file has lengths only, ``timed`` false). ``rows``
    are all data rows of the file; those left out by a declared rule are ``rejected``. ``block_size`` is the number of
    tokens behind each id of ``blocks``.
    """

    format: str
    arrivals_ns: "array[int]"
    prompts: "array[int]"
    outputs: "array[int]"
    rows: int
    sha256: str
    bytes: int
    timed: bool = True
    block_size: int | None = None
    blocks: Blocks | None = None
    cached: "array[int] | None" = None
    parents: Parents | None = None
    tenants: Labels | None = None
    tiers: Labels | None = None
    sessions: "array[int] | None" = None
    turns: "array[int] | None" = None
    rejected: tuple[Rejected, ...] = ()
    zero_output_rows: int = 0
    out_of_order_rows: int = 0
    same_instant_groups: int = 0
    same_instant_rows: int = 0
    rules: tuple[str, ...] = ()
    attribution: str = ""

    def __len__(self) -> int:
        return len(self.prompts)

    def observed_hit_share(self, first: int = 0, last: int | None = None) -> float | None:
        """Share of the prompt tokens of rows ``[first, last)`` that the logged server found in its prefix cache.

        Over the rows that say; None where none does.
        """
        if self.cached is None:
            return None
        rows = [row for row in range(len(self))[first:last] if self.cached[row] != NOT_SAID]
        prompts = sum(self.prompts[row] for row in rows)
        return sum(self.cached[row] for row in rows) / prompts if prompts else None

    @property
    def span_ns(self) -> int:
        """Time from the first to the last usable row."""
        return self.arrivals_ns[-1] if self.arrivals_ns else 0

    @cached_property
    def digest(self) -> str:
        """Hex digest over the usable rows as integers; the same in every process and on every machine."""
        digest = blake2b(f"{DIGEST_FORM}|{self.block_size if self.blocks else None}\n".encode(), digest_size=16)
        for row in self._canonical():
            digest.update(row.encode())
        return digest.hexdigest()

    def _canonical(self) -> Iterator[str]:
        for row, (at, prompt, output) in enumerate(zip(self.arrivals_ns, self.prompts, self.outputs, strict=True)):
            text = f"{at},{prompt},{output}"
            if self.sessions is not None and self.turns is not None:
                text += f",s{self.sessions[row]},{self.turns[row]}"
            for mark, labels in (("t", self.tenants), ("p", self.tiers)):
                if labels is not None:
                    text += f",{mark}{labels.of(row)!a}"
            if self.blocks is not None:
                text += f",{self.blocks.of(row)}"
            if self.parents is not None:
                text += f",w{self.parents.of(row)},{self.parents.think_ns[row]}"
            yield text + "\n"


def same_instants(arrivals_ns: Sequence[int]) -> tuple[int, int]:
    """Groups of two or more rows with one time, and the rows in them; times in order."""
    groups = rows = 0
    inside = False
    for before, at in pairwise(arrivals_ns):
        if at == before:
            groups += not inside
            rows += 1 if inside else 2
        inside = at == before
    return groups, rows


def spread(arrivals_ns: "array[int]") -> "array[int]":
    """Rows with one time, spread evenly from it to the next time.

    The last group has no next time: it is spread over the distance between the two times before. A file with a single
    time stays as it is.
    """
    times = sorted(set(arrivals_ns))
    if len(times) < 2:
        return arrivals_ns
    next_of = dict(pairwise(times))
    next_of[times[-1]] = 2 * times[-1] - times[-2]
    result = array("q")
    start = 0
    while start < len(arrivals_ns):
        at = arrivals_ns[start]
        end = start + 1
        while end < len(arrivals_ns) and arrivals_ns[end] == at:
            end += 1
        width = next_of[at] - at
        result.extend(at + width * place // (end - start) for place in range(end - start))
        start = end
    return result
