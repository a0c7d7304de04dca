"""What the last rounds were like: figures that policies may look at, with a stated lag (C6)."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

from scheduler_core.sched.view import RequestView, View
from scheduler_core.types.patience import Promise
from scheduler_core.types.plan import Grant, Phase
from scheduler_core.types.reasons import Outcome
from scheduler_core.types.time import Ns

SHRINK, GROWTH_STEPS = 0.75, 16
"""How parts adapt: a quarter less, or a sixteenth more."""

_DECODE = Phase.DECODE
_MISSED = (Outcome.TIMED_OUT, Outcome.FAILED)


class Round(NamedTuple):
    """A step that has come back: how long it took, who decoded, and what stood around it when it was planned."""

    step_ns: Ns
    decodes: int
    prefill_tokens: int
    waiting: int
    kv_used: int
    kv_total: int


class Figures(NamedTuple):
    """What may be known of the last rounds: the newest one, and the rounds of the window up to it.

    ``attainment``: share of the requests with a promise on their first token that kept it, of those whose first token
    came, or who gave up on it, in the window; ``queue_wait_ns``: mean wait of those who were served for the first time;
    both None where there was nobody. ``waiting`` is the mean of waiting requests, ``restarts`` how many came back that
    had lost their blocks.
    """

    newest: Round
    attainment: float | None
    queue_wait_ns: float | None
    waiting: float
    restarts: int


class Adapts(Protocol):
    """A part that adapts to the last rounds."""

    def adapt(self, figures: Figures) -> None:
        """A round has ended, and this is what may be known by now."""


@dataclass(slots=True)
class _Tally:
    """Sums over rounds."""

    promised: int = 0
    kept: int = 0
    served: int = 0
    waited_ns: Ns = 0
    waiting: int = 0
    restarts: int = 0

    def add(self, other: Self, sign: int = 1) -> None:
        self.promised += sign * other.promised
        self.kept += sign * other.kept
        self.served += sign * other.served
        self.waited_ns += sign * other.waited_ns
        self.waiting += sign * other.waiting
        self.restarts += sign * other.restarts


class LastRounds:
    """An observer that keeps the last ``window`` rounds that ended at least ``lag`` rounds ago, and tells ``parts``.

    It reads no clock: a round lasts from its planning to the next one. Where nobody of it is left, nothing follows it
    at once, and the time until the next arrival is no step: the round is left out, but what happened to requests in it
    counts with the next one.
    """

    def __init__(self, lag: int, window: int, promises: Mapping[str, Promise]) -> None:
        self.parts: list[Adapts] = []
        self.decoding = False
        """Whether somebody emits a token in the step planned last, and so decodes in the next one."""
        self._lag, self._window, self._promises = lag, window, promises
        self._hidden: deque[tuple[Round, _Tally]] = deque()
        self._seen: deque[tuple[Round, _Tally]] = deque()
        self._sums = _Tally()
        self._open: tuple[Ns, Round] | None = None
        self._tally = _Tally()
        self._alive: set[int] = set()
        self._epochs: dict[int, int] = {}
        self._awaited: dict[int, tuple[RequestView, int]] = {}

    def figures(self) -> Figures | None:
        """What may be known by now; None while no round is old enough."""
        return self._figures(self._seen[-1][0]) if self._seen else None

    def begun(self, now_ns: Ns) -> None:
        """A step is about to be planned: the one before it has ended as a round, if somebody of it is left."""
        self._note_first_tokens(now_ns)
        opened, self._open = self._open, None
        if opened is None or not self._alive:
            return
        since_ns, what = opened
        self._tally.waiting = what.waiting
        self._hidden.append((what._replace(step_ns=now_ns - since_ns), self._tally))
        self._tally = _Tally()
        if len(self._hidden) > self._lag:
            self._show()

    def planned(self, view: View, grants: Mapping[int, Grant]) -> None:
        """Note what was planned."""
        decodes = sum(grant.phase is _DECODE for grant in grants.values())
        prefill = sum(grant.length for grant in grants.values() if grant.phase is not _DECODE)
        self._alive = set(grants)
        self.decoding = any(grant.samples for grant in grants.values())
        if not grants:
            return
        used = view.total_blocks - view.free_blocks
        self._open = (view.now_ns, Round(0, decodes, prefill, view.waiting, used, view.total_blocks))
        fresh = [grant for grant in grants.values() if self._epochs.get(grant.request) != grant.epoch]
        if fresh:
            self._note_starts(fresh, view)

    def ended(self, request: RequestView, outcome: Outcome) -> None:
        """A request is over."""
        self._alive.discard(request.id)
        self._epochs.pop(request.id, None)
        if outcome is not Outcome.FINISHED:
            self._awaited.pop(request.id, None)
            if outcome in _MISSED and not request.emitted and self._promised_ns(request, 0) is not None:
                self._tally.promised += 1

    def _figures(self, newest: Round) -> Figures:
        sums = self._sums
        return Figures(
            newest,
            sums.kept / sums.promised if sums.promised else None,
            sums.waited_ns / sums.served if sums.served else None,
            sums.waiting / len(self._seen),
            sums.restarts,
        )

    def _show(self) -> None:
        """One more round is old enough to be looked at."""
        what, tally = self._hidden.popleft()
        self._seen.append((what, tally))
        self._sums.add(tally)
        if len(self._seen) > self._window:
            self._sums.add(self._seen.popleft()[1], -1)
        figures = self._figures(what)
        for part in self.parts:
            part.adapt(figures)

    def _note_starts(self, fresh: list[Grant], view: View) -> None:
        """Who is served for the first time, or again after it lost its blocks."""
        running = {request.id: request for request in view.running_requests()}
        for grant in fresh:
            request = running[grant.request]
            if grant.request in self._epochs or grant.epoch:
                self._tally.restarts += 1
            else:
                self._tally.served += 1
                self._tally.waited_ns += view.now_ns - request.spec.arrival_ns
                self._awaited[grant.request] = (request, grant.hit_tokens)
            self._epochs[grant.request] = grant.epoch

    def _note_first_tokens(self, now_ns: Ns) -> None:
        come = [number for number, (request, _) in self._awaited.items() if request.emitted]
        for number in come:
            request, found = self._awaited.pop(number)
            limit_ns = self._promised_ns(request, found)
            if limit_ns is not None:
                self._tally.promised += 1
                self._tally.kept += now_ns - request.spec.arrival_ns <= limit_ns

    def _promised_ns(self, request: RequestView, found: int) -> float | None:
        """By when its first token is promised, from its arrival; ``found`` tokens of the prompt were cached."""
        promise = self._promises.get(request.spec.tier)
        if promise is None or promise.ttft_ns is None:
            return None
        return promise.ttft_ns + promise.ttft_token_ns * (request.spec.prompt_tokens - found)
