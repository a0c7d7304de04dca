"""Which part of a run is measured."""

from dataclasses import dataclass

from scheduler_core.types.time import Ns


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

    def arrived(self, request: int, at_ns: Ns) -> None:
        """A request arrived; the first measured one opens the window."""
        if request >= self.opens_with and self.start_ns is None:
            self.start_ns = at_ns
            self.tokens = 0

    def ended(self, request: int, at_ns: Ns) -> None:
        """A request ended; a measured one extends the window."""
        if request >= self.opens_with and at_ns >= self.end_ns:
            self.end_ns = at_ns
            self.tokens_at_end = self.tokens

    @property
    def span_ns(self) -> Ns:
        """Length of the window."""
        return 0 if self.start_ns is None else max(0, self.end_ns - self.start_ns)
