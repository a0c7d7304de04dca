"""Which part of a run is measured, and what was produced in it."""

from collections import Counter
from dataclasses import dataclass, field

from scheduler_core.types.time import NS_PER_S, Ns


@dataclass
class Window:
    """The measured window: requests from index ``opens_with`` on, their first arrival to their last end.

    Plans number requests by scheduled arrival, so every arm leaves out the same ones. ``tokens`` counts all tokens
    emitted since the window opened, ``tokens_at_end`` those until the last measured request had ended.
    """

    warmup_share: float
    opens_with: int = 0
    start_ns: Ns | None = None
    end_ns: Ns = 0
    tokens: int = 0
    tokens_at_end: int = 0
    _seconds: Counter[int] = field(default_factory=Counter)
    _seconds_since_end: Counter[int] = field(default_factory=Counter)
    _second: int = 0  # the one that came last, of times in ``[_from_ns, _until_ns)``, with its tokens so far
    _from_ns: Ns = 0
    _until_ns: Ns = 0
    _second_tokens: int = 0

    def arrived(self, request: int, at_ns: Ns) -> None:
        """A request arrived; the first measured one opens the window."""
        if request >= self.opens_with and self.start_ns is None:
            self.start_ns = at_ns
            self.tokens = self._second_tokens = 0

    def emitted(self, at_ns: Ns, tokens: int) -> None:
        """``tokens`` tokens became available at one time; below 0 where fewer had come than were told."""
        self.tokens += tokens
        if not self._from_ns <= at_ns < self._until_ns:
            self._turn_to(at_ns)
        self._second_tokens += tokens

    def _turn_to(self, at_ns: Ns) -> None:
        """Tokens come in another second than the ones before; before the window opens, in none."""
        self._put_down()
        if self.start_ns is not None:
            self._second = max(0, at_ns - self.start_ns) // NS_PER_S
            self._until_ns = self.start_ns + (self._second + 1) * NS_PER_S
            self._from_ns = self._until_ns - NS_PER_S if self._second else 0

    def _put_down(self) -> None:
        if self.start_ns is not None:
            self._seconds_since_end[self._second] += self._second_tokens
        self._second_tokens = 0

    def ended(self, request: int, at_ns: Ns) -> None:
        """A request ended; a measured one extends the window."""
        if request >= self.opens_with and at_ns >= self.end_ns:
            self.end_ns = at_ns
            self.tokens_at_end = self.tokens
            self._put_down()
            self._seconds.update(self._seconds_since_end)
            self._seconds_since_end.clear()

    @property
    def span_ns(self) -> Ns:
        """Length of the window."""
        return 0 if self.start_ns is None else max(0, self.end_ns - self.start_ns)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens produced in the window by its length; None for a window of no length."""
        return self.tokens_at_end * NS_PER_S / self.span_ns if self.span_ns else None

    @property
    def peak_tokens_per_s(self) -> float | None:
        """Highest token rate among the whole seconds of the window from its start; None for a window of no length.

        What is left over after the last whole second belongs to it, and a window shorter than a second is one part: no
        token is left out and no part is shorter than a second unless the window is. `tokens_per_s` is then the mean of
        the parts' rates weighted by their lengths, which the highest of them cannot be below.
        """
        span = self.span_ns
        if not span:
            return None
        last = max(1, span // NS_PER_S) - 1
        parts: Counter[int] = Counter()
        for second, tokens in self._seconds.items():
            parts[min(second, last)] += tokens
        lengths = {last: span - last * NS_PER_S}
        rates = (tokens * NS_PER_S / lengths.get(part, NS_PER_S) for part, tokens in parts.items())
        return max((0.0, *rates))
