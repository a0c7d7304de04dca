"""What became of every planned request, as one equation that each page and export shows.

Planned = sent + not sent; sent = finished + failed + rejected + timed out + cancelled + open at the end.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from scheduler_core.types.reasons import Outcome

OPEN = "open at the end"


@dataclass(frozen=True, slots=True)
class Account:
    """``ended`` counts the requests that were sent by what became of them, in words; those that occur, and finished."""

    planned: int
    not_sent: int
    ended: dict[str, int]

    @property
    def sent(self) -> int:
        """Requests that were handed to the target."""
        return sum(self.ended.values())

    @property
    def balanced(self) -> bool:
        """Whether both equations hold."""
        return self.planned == self.sent + self.not_sent and all(count >= 0 for count in self.ended.values())

    def sentence(self) -> str:
        """Both equations."""
        parts = " + ".join(f"{count:,} {name}" for name, count in self.ended.items())
        return (
            f"{self.planned:,} planned = {self.sent:,} sent + {self.not_sent:,} not sent; {self.sent:,} sent = {parts}"
        )


def account(offered: int, outcomes: Mapping[str, int], unsent: Mapping[str, int]) -> Account:
    """From a summary's counts: ``unsent`` are those of ``outcomes`` that never left the client or never came up."""
    ended = {_words(outcome): outcomes.get(outcome, 0) - unsent.get(outcome, 0) for outcome in Outcome}
    shown = {name: count for name, count in ended.items() if count or name == Outcome.FINISHED}
    return Account(offered, sum(unsent.values()), shown)


def _words(outcome: Outcome) -> str:
    return OPEN if outcome is Outcome.CUT_OFF else outcome.replace("_", " ")
