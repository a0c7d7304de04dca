"""One instance among many in a fast simulation: it plays its own steps, as far as somebody needs to know."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from scheduler_core.cluster.load import Load
from scheduler_core.drive.cuts import Outside
from scheduler_core.request.live import LiveRequest
from scheduler_core.request.spec import RequestSpec
from scheduler_core.sched.fused import FusedInstance
from scheduler_core.sched.moving import Leaving, Reserved
from scheduler_core.sched.plan import Ended
from scheduler_core.sched.policy import PolicySet
from scheduler_core.sim.cost import StepCost
from scheduler_core.sim.fastforward import Player
from scheduler_core.sim.rows import RequestRow, Track
from scheduler_core.sim.world import SimulatedWorld
from scheduler_core.types.reasons import Outcome
from scheduler_core.types.time import NEVER, Ns

_ALONE = Outside()
_LINE = 64
_NO_NEWS: tuple[Sequence[int], Sequence[int]] = (), ()


@dataclass(slots=True)
class Clock:
    """The present of a fleet. ``stop_ns`` and ``horizon_ns`` are how far an instance plays that is asked now.

    With ``whole`` steps nothing from outside can meet a step that runs: newcomers stand in line until it is over. Else
    a step that has not ended stays begun. ``asked`` are the instances that have played since `at`.
    """

    whole: bool
    now_ns: Ns = 0
    stop_ns: Ns = 0
    horizon_ns: Ns = NEVER
    asked: set[int] = field(default_factory=set)

    def at(self, now_ns: Ns) -> None:
        """It is ``now_ns``; steps that end now are not over yet."""
        self.now_ns = self.stop_ns = now_ns
        if not self.whole:
            self.horizon_ns = now_ns
        self.asked.clear()

    def steps_end(self) -> None:
        """Steps that end now are over; the next ones are not planned yet."""
        if not self.whole:
            self.horizon_ns = self.now_ns + 1

    def plans(self) -> None:
        """Who has no step plans one."""
        self.stop_ns = self.now_ns + 1


@dataclass(frozen=True, slots=True)
class Shared:
    """What the instances of a fleet share: the clock, the open requests, and where rows go, with the instance."""

    clock: Clock
    tracks: dict[int, Track]
    sink: Callable[[RequestRow, int], None]


class LaneWorld(SimulatedWorld):
    """The world of one instance of a fleet.

    ``line`` has requests that were routed here, will be let in and are not yet. ``news`` are first tokens and ends, as
    (time, request, whether it ended), as far as ``tells_first`` and ``tells_ends``.
    """

    def __init__(self, instance: "Lane", cost: StepCost, index: int, shared: Shared) -> None:
        sink = shared.sink
        self._lane = instance
        super().__init__(instance, cost, lambda row: sink(row, index), outside=_ALONE, prefix_block_size=1)
        self.tracks = shared.tracks
        self.line: deque[tuple[Ns, RequestSpec]] = deque()
        self.news: deque[tuple[Ns, int, bool]] = deque()
        self.tells_first = self.tells_ends = False

    @property
    def nobody_comes(self) -> bool:
        """Never known here: the fleet closes its instances by itself."""
        return False

    def take_news(self, now_ns: Ns) -> tuple[Sequence[int], Sequence[int]]:
        """Requests that emitted their first token, and those that ended, by ``now_ns``; not told again."""
        news = self.news
        if not news or news[0][0] > now_ns:
            return _NO_NEWS
        first, over = list[int](), list[int]()
        while news and news[0][0] <= now_ns:
            _, request, ended = news.popleft()
            (over if ended else first).append(request)
        return first, over

    def stand_in_line(self, spec: RequestSpec, now_ns: Ns) -> None:
        """``spec`` comes at ``now_ns``; it is submitted as soon as somebody looks."""
        self.line.append((now_ns, spec))
        self.next_ns = self.line[0][0]

    def _arrive(self) -> None:
        at_ns, spec = self.line.popleft()
        self.next_ns = self.line[0][0] if self.line else NEVER
        self._lane.let_in(spec, at_ns)

    def note_first(self, request: int, at_ns: Ns) -> None:
        track = self.tracks[request]
        if track.first_ns is None:
            track.first_ns = at_ns
            if self.tells_first:
                self.news.append((at_ns, request, False))

    def finished(self, request: LiveRequest, reason: str, at_ns: Ns) -> None:
        super().finished(request, reason, at_ns)
        if self.tells_ends:
            self.news.append((at_ns, request.id, True))

    def over(self, live: LiveRequest, ended: Ended, at_ns: Ns) -> None:
        super().over(live, ended, at_ns)
        if self.tells_ends:
            self.news.append((at_ns, live.id, True))

    def gone(self, live: LiveRequest, ended: Ended, at_ns: Ns) -> None:
        """As `over`, for one that was ended by whoever would hear of it."""
        super().over(live, ended, at_ns)

    def refused(self, ended: Ended, at_ns: Ns, prompt_tokens: int) -> None:
        """Keep the row of a request that was never let in."""
        self._row(ended, at_ns, prompt_tokens, 0)


class Lane(FusedInstance):
    """An instance of a fleet. Whatever is asked of it is asked now, so it first plays its steps up to now.

    ``due_ns`` is when it has something to do by itself. ``uncounted`` tokens were moved here at this very moment, and
    whoever counts loads has not heard of it.
    """

    def __init__(self, policy: PolicySet, cost: StepCost, index: int, shared: Shared) -> None:
        super().__init__(policy)
        self.index = index
        self.world = LaneWorld(self, cost, index, shared)
        self.player = Player(self, cost, self.world)
        self.world.most_waiting = self.player.most_waiting
        self.due_ns: Ns = NEVER
        self.uncounted = 0
        self._clock = shared.clock

    def catch_up(self) -> None:
        """Play what is due now, and be asked again before this moment is over."""
        self._clock.asked.add(self.index)
        self.look()

    def look(self) -> None:
        """Play what is due now; nothing is changed from outside."""
        clock = self._clock
        if self.due_ns < clock.stop_ns or self.due_ns < clock.horizon_ns < NEVER:
            self.due_ns = self.player.play(clock.stop_ns, horizon_ns=clock.horizon_ns)

    def news_ns(self) -> Ns:
        """No first token and no end comes before this."""
        news = self.world.news
        at_ns = self.player.quiet_until_ns(self.due_ns)
        return min(at_ns, news[0][0]) if news else at_ns

    def close(self) -> None:
        """No request will arrive any more; who waits for a full batch need wait no more."""
        self.catch_up()
        self.close_arrivals()
        self._poke()

    def kv_tokens(self) -> int:
        """Prompt and emitted tokens of the requests counted here; those left out that only have a place."""
        self.look()
        state = self._state
        tokens = state.cohort.context_tokens - self.uncounted
        for request in state.apart.values():
            tokens += request.known
        if state.waiting:
            for waits in state.waiting:
                tokens += waits.known
        return tokens

    def _moved_in(self, request: int) -> None:
        self.uncounted += self.live[request].known
        self._poke()

    def _poke(self) -> None:
        self.player.poke(self._clock.now_ns)
        if self._clock.now_ns < self.due_ns:
            self.due_ns = self._clock.now_ns

    # --- as an instance ----------------------------------------------------------------------------------------

    def submit(self, spec: RequestSpec, now_ns: Ns) -> Ended | None:
        if not self._clock.whole:
            self.catch_up()
            ended = super().submit(spec, now_ns)
            self._poke()
            return ended
        spec.check()
        refusal = self._refuse(spec)
        if refusal is not None:
            reason, need, have = refusal
            return Ended(spec.id, Outcome.REJECTED, "submit", reason.value, 0, need, have)
        self.world.stand_in_line(spec, now_ns)
        self._clock.asked.add(self.index)
        if now_ns < self.due_ns:
            self.due_ns = max(now_ns, self.player.now_ns)
        if not len(self.world.line) % _LINE:
            self.catch_up()
        return None

    def let_in(self, spec: RequestSpec, at_ns: Ns) -> None:
        """Take in a request that stood in line."""
        self._let_in(spec, at_ns)

    def abort(self, request: int, *, outcome: Outcome = Outcome.CANCELLED, reason: str = "cancelled") -> Ended | None:
        self.catch_up()
        live = self.live.get(request)
        ended = super().abort(request, outcome=outcome, reason=reason)
        if live is not None and ended is not None:
            self.world.gone(live, ended, self._clock.now_ns)
        self._poke()
        return ended

    def started(self, request: int) -> bool:
        self.catch_up()
        return super().started(request)

    def park(self, request: int) -> None:
        self.catch_up()
        super().park(request)
        self._poke()

    def stay(self, request: int) -> None:
        self.catch_up()
        super().stay(request)
        self._poke()

    def depart(self, request: int) -> None:
        self.catch_up()
        super().depart(request)
        self._poke()

    def reserve(self, left: Leaving, now_ns: Ns, *, headroom_tokens: int = 0) -> Reserved | Ended | None:
        self.catch_up()
        return super().reserve(left, now_ns, headroom_tokens=headroom_tokens)

    def land(self, request: int, tokens: int, *, known: int | None = None) -> None:
        self.catch_up()
        super().land(request, tokens, known=known)
        self._moved_in(request)

    def resume(self, left: Leaving, now_ns: Ns) -> Ended | None:
        self.catch_up()
        ended = super().resume(left, now_ns)
        if ended is None:
            self._moved_in(left.spec.id)
        return ended

    def leaving(self, request: int) -> Leaving:
        self.catch_up()
        return super().leaving(request)


class LaneLoad(Load):
    """Counts of an instance of a fleet: its tokens are looked up where they are asked for."""

    __slots__ = ("_lane",)

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        super().__init__()

    @property
    def kv_tokens(self) -> int:
        return self._lane.kv_tokens()
