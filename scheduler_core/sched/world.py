"""What a simulated instance is played in: who comes, how long steps take, when answers end.

Base classes, not protocols: compiled code finds methods of the first at once, those of the second by name.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

from scheduler_core.request.live import LiveRequest
from scheduler_core.sched.plan import FusedStep
from scheduler_core.types.time import Ns


class StepTimes(ABC):
    """How long steps take, in whole nanoseconds, at least 1; the numbers are those of `types.shape.StepShape`."""

    __slots__ = ()

    @abstractmethod
    def duration_ns(self, prefill: int, decode: int, context: int, pairs: int, step: int, joined: int = 0) -> Ns:
        """Time of step number ``step``."""

    @abstractmethod
    def decode_ns(self, decode: int, context: int, step: int) -> Ns:
        """As `duration_ns` of a step in which requests only decode."""

    @abstractmethod
    def decode_line(self, decode: int) -> tuple[float, float, float] | None:
        """(a, b, c) such that `decode_ns` is ``round(a + b * context + c)``, at least 1; None where nothing is."""


class Ends(ABC):
    """When members of the cohort emit their last token; ``next_tick`` is the earliest tick at which one does."""

    __slots__ = ()

    next_tick: int

    @abstractmethod
    def schedule(self, member: LiveRequest, left: int) -> None:
        """A new member has ``left`` tokens to go."""

    @abstractmethod
    def take(self, tick: int) -> list[tuple[LiveRequest, str]]:
        """Members that have emitted their last token by ``tick``, with the reason of their end; never told again."""


class World(ABC):
    """What happens around an instance: told and asked by the loop, known to the simulator alone.

    ``next_ns`` is when the next request arrives. A step that would begin at ``stop_ns`` or later is not played, and one
    that would end at ``bar_ns`` or later may be met by something from outside; both may change while steps are played.
    ``observe`` is called for each step before it is completed.
    """

    times: StepTimes
    ends: Ends
    next_ns: Ns
    stop_ns: Ns
    bar_ns: Ns
    observe: Callable[[FusedStep, Ns, Ns], None] | None

    @abstractmethod
    def deliver(self, now_ns: Ns) -> None:
        """Submit who has arrived by ``now_ns``, as far as the queue wants them."""

    @abstractmethod
    def started(self, request: LiveRequest, at_ns: Ns) -> None:
        """A request came in."""

    @abstractmethod
    def emitted(self, request: LiveRequest, at_ns: Ns) -> int:
        """A request outside the cohort emitted a token; returns how many its answer still has."""

    @abstractmethod
    def finished(self, request: LiveRequest, reason: str, at_ns: Ns) -> None:
        """A request has emitted its last token and is gone."""
