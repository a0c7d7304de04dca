"""What a router may know of an instance, and how old it is."""

from collections.abc import Sequence

from scheduler_core.types.time import Ns


class Load:
    """Counts of one instance, each changed in O(1) by an event.

    ``open`` requests were routed there and are not over; ``prefill_tokens`` are the prompt tokens of those that have
    not emitted yet, ``kv_tokens`` the prompt and emitted tokens of all of them: what the pool holds or will hold.
    ``urgent`` of them have a priority below the usual 0. ``busy_ns`` is the time of its steps so far.
    """

    __slots__ = ("_kv_tokens", "busy_ns", "open", "prefill_tokens", "urgent")

    def __init__(self) -> None:
        self.open = 0
        self.prefill_tokens = 0
        self._kv_tokens = 0
        self.urgent = 0
        self.busy_ns: Ns = 0

    def count(self, prompt_tokens: int, emitted: int, sign: int) -> None:
        """A request that has ``emitted`` so many tokens comes (``sign`` 1) or leaves (-1)."""
        self.open += sign
        self._kv_tokens += sign * (prompt_tokens + emitted)
        if not emitted:
            self.prefill_tokens += sign * prompt_tokens

    @property
    def kv_tokens(self) -> int:
        """Prompt and emitted tokens of all requests here."""
        return self._kv_tokens

    def emits(self, prompt_tokens: int, emitted: int) -> None:
        """A request of ``prompt_tokens`` that has ``emitted`` so many tokens emits one more."""
        self._kv_tokens += 1
        if not emitted:
            self.prefill_tokens -= prompt_tokens

    def copy_from(self, other: "Load") -> None:
        """Take over the counts of ``other``."""
        self.open, self.prefill_tokens, self._kv_tokens = other.open, other.prefill_tokens, other.kv_tokens
        self.urgent, self.busy_ns = other.urgent, other.busy_ns


class Observer:
    """Loads as a router sees them: as of the last look, and looks are ``interval_ns`` apart (0: always fresh).

    Real routers scrape or are told periodically; between two looks they know only what they did themselves, and
    several requests may follow each other to the instance that looked idle.
    """

    def __init__(self, loads: Sequence[Load], interval_ns: Ns) -> None:
        self._actual = loads
        self._interval_ns = interval_ns
        self._seen: Sequence[Load] = loads if not interval_ns else [Load() for _ in loads]
        self._next_look: Ns = 0

    def look(self, now_ns: Ns) -> Sequence[Load]:
        """What is known at ``now_ns``, by index of instance. Not to be changed."""
        if self._interval_ns and now_ns >= self._next_look:
            for seen, actual in zip(self._seen, self._actual, strict=True):
                seen.copy_from(actual)
            self._next_look = now_ns - now_ns % self._interval_ns + self._interval_ns
        return self._seen
