"""The stream of one open request: chunks as they came in, and its tokens once the answer is over."""

from collections.abc import Iterator
from itertools import pairwise

from scheduler_core.evidence.fold.chunks import even_gaps
from scheduler_core.types.records import Arrived
from scheduler_core.types.time import Ns


class Stream:
    """Chunk stamps with their tokens, and the tries that led to them."""

    __slots__ = ("arrived", "cached_tokens", "chunks", "connect_ns", "prompt_tokens", "queue_ns", "sent_ns", "tries")

    def __init__(self, arrived: Arrived) -> None:
        self.arrived = arrived
        self.sent_ns: Ns | None = None
        self.connect_ns: Ns = 0
        self.tries = 0
        self.chunks: list[tuple[Ns, int]] = []
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.queue_ns: Ns | None = None

    def sent(self, at_ns: Ns, connect_ns: Ns) -> None:
        """A try was written; what an earlier one brought is void."""
        if self.sent_ns is None:
            self.sent_ns = at_ns
        self.connect_ns += connect_ns
        self.tries += 1
        self.chunks.clear()

    def correct(self, counts: list[int]) -> bool:
        """Replace the tokens of the chunks; False when they are not as many."""
        if len(counts) != len(self.chunks):
            return False
        self.chunks = [(at, count) for (at, _), count in zip(self.chunks, counts, strict=True)]
        return True

    @property
    def tokens(self) -> int:
        """Tokens so far."""
        return sum(count for _, count in self.chunks)

    @property
    def prefilled_tokens(self) -> int | None:
        """Prompt tokens that its first token took: those that the server did not say it found in its cache.

        None without a token: how much of the prompt was computed by then, no client can see.
        """
        if not self.chunks:
            return None
        prompt = self.arrived.prompt_tokens if self.prompt_tokens is None else self.prompt_tokens
        return prompt - min(prompt, self.cached_tokens or 0)

    def chunk_gaps(self) -> Iterator[tuple[Ns, Ns, int]]:
        """(time, wait since the chunk before, tokens) of each chunk but the first."""
        for (before, _), (at, count) in pairwise(self.chunks):
            yield at, at - before, count

    def token_gaps(self) -> Iterator[tuple[Ns, Ns]]:
        """(time, gap) of each token but the first, those of one chunk evenly over the wait that it ended.

        The gaps add up to last - first chunk to the nanosecond. Tokens of the first chunk came at one instant.
        """
        if self.chunks:
            at, count = self.chunks[0]
            for _ in range(count - 1):
                yield at, 0
        for at, wait, count in self.chunk_gaps():
            time = at - wait
            for gap in even_gaps(wait, count):
                time += gap
                yield time, gap

    def longest(self) -> tuple[Ns, int, Ns] | None:
        """(longest wait between two chunks, number of the token that ended it, when); None below two chunks."""
        best: tuple[Ns, int, Ns] | None = None
        token = self.chunks[0][1] if self.chunks else 0
        for at, wait, count in self.chunk_gaps():
            if best is None or wait > best[0]:
                best = (wait, token, at)
            token += count
        return best
