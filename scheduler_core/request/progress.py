"""Cursors of a request: what is known, planned and done.

In tokens of prompt + emitted output::

    0 ........ confirmed ........ granted ........ known ........ known + promised
      KV written and   in flight           not yet        one token for each sampling
      reported back                        scheduled      grant still in flight

A grant may go on beyond that with ``drafted`` tokens that are only proposed. When it comes back, those that were
accepted are known, their KV is written, and *granted* and *confirmed* move over them; of the others nothing is left.

Planning uses *granted*, release and confirmed publication use *confirmed*: there is no optimistic counter to roll
back. ``epoch`` rises when a request loses its blocks, so that an answer to an older grant is recognised.
"""

from scheduler_core.types.errors import CallerError
from scheduler_core.types.plan import Grant


class Progress:
    """The cursors; every change keeps ``0 <= confirmed <= granted <= known + promised``."""

    __slots__ = ("confirmed", "drafted", "epoch", "granted", "known", "promised")

    def __init__(self, prompt_tokens: int) -> None:
        self.known = prompt_tokens
        self.promised = 0
        self.granted = 0
        self.confirmed = 0
        self.drafted = 0
        self.epoch = 0

    @property
    def debt(self) -> int:
        """Tokens still to be granted: prefill, resume and decode are the same arithmetic."""
        return self.known + self.promised - self.granted

    def adopt(self, hit_tokens: int) -> None:
        """Start at ``hit_tokens``: their KV was found in the prefix cache."""
        if self.granted or not 0 <= hit_tokens < self.known:
            raise CallerError(f"cannot adopt {hit_tokens} of {self.known} known tokens at {self.granted} granted")
        self.granted = self.confirmed = hit_tokens

    def deliver(self, tokens: int) -> None:
        """KV up to ``tokens`` was delivered from another instance; what was found here before is part of it.

        Of all known tokens the last is computed again, since a step over it yields the next one (V-33).
        """
        last = self.known - 1
        if not min(self.granted, last) <= min(tokens, last) or tokens > self.known:
            raise CallerError(f"cannot take {tokens} of {self.known} known tokens at {self.granted} granted")
        self.granted = self.confirmed = min(tokens, last)

    def grant(self, length: int) -> bool:
        """Plan ``length`` more tokens; true when the last of them yields a new token."""
        if not 0 < length <= self.debt:
            raise CallerError(f"cannot grant {length} tokens with {self.debt} left to grant")
        self.granted += length
        samples = self.granted == self.known + self.promised
        self.promised += samples
        return samples

    def fill(self, length: int) -> bool:
        """As `grant`, for a request whose next token another instance will compute: nothing is promised."""
        if not 0 < length <= self.debt:
            raise CallerError(f"cannot grant {length} tokens with {self.debt} left to grant")
        self.granted += length
        return False

    def confirm(self, end: int, *, sampled: bool, accepted: int = 0) -> None:
        """A step came back: KV is written up to ``end``, and one token was emitted if ``sampled``.

        Before that one come ``accepted`` drafts, whose KV is written, too.
        """
        self.confirmed = end
        if sampled:
            self.known += 1
            self.promised -= 1
        if self.drafted:
            self.drafted = 0
            self.known += accepted
            self.granted += accepted
            self.confirmed += accepted

    def deliver_late(self, accepted: int = 0) -> None:
        """The tokens of a step planned before the blocks were lost still count as emitted (V-18)."""
        self.known += 1 + accepted
        self.promised -= 1

    def restart(self, revoked: Grant | None) -> int:
        """Blocks are lost: forget computed tokens, keep emitted ones (V-16); returns the tokens lost.

        ``revoked`` is a grant of the step being planned, which is taken back. What is in flight is computed in vain.
        """
        lost = self.granted - (revoked.end - revoked.start if revoked is not None else 0)
        self.granted = self.confirmed = self.drafted = 0
        self.promised -= revoked is not None and revoked.samples
        self.epoch += 1
        return lost

    def take_back(self, revoked: Grant) -> None:
        """A grant of the step being planned is taken back; what was computed before stays."""
        self.granted -= revoked.end - revoked.start
        self.promised -= revoked.samples
        self.drafted = 0

    def restore(self, tokens: int) -> None:
        """The KV of the first ``tokens`` tokens is back."""
        if self.granted or not 0 < tokens < self.known + self.promised:
            raise CallerError(f"cannot restore {tokens} of {self.known} known tokens at {self.granted} granted")
        self.granted = self.confirmed = tokens

    def check(self) -> str | None:
        """What is wrong with the cursors, or None."""
        if 0 <= self.confirmed <= self.granted <= self.known + self.promised:
            return None
        return f"confirmed {self.confirmed} <= granted {self.granted} <= known {self.known} + {self.promised} fails"
