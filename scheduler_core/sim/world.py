"""What happens around an instance in a long simulation: who comes, who gives up, how long answers are, what is kept."""

import heapq

from scheduler_core.drive.cuts import CANCEL, Due, Outside, cut, cuts_of, displace, reset
from scheduler_core.request.live import LiveRequest
from scheduler_core.request.spec import RequestSpec
from scheduler_core.sched.fused import FusedInstance
from scheduler_core.sched.plan import Ended
from scheduler_core.sched.world import World
from scheduler_core.sim.arrivals import ArrivalStream
from scheduler_core.sim.cost import StepCost
from scheduler_core.sim.ends import EndTimes
from scheduler_core.sim.rows import RequestRow, RowSink, Track
from scheduler_core.types.reasons import Outcome
from scheduler_core.types.time import NEVER, Ns

# Bound once: in CPython 3.11 reading a member off its enum class costs ten times a global.
_FINISHED = Outcome.FINISHED.value


class SimulatedWorld(World):
    """The world of a simulated instance, for whoever plays its steps.

    ``tracks`` are the open requests, as nobody else knows them. ``rows`` and ``preemptions`` count what has ended.
    ``most_waiting`` is how many requests the queue is given at most before it asks for more. ``cut_ns`` is when the
    next one may be ended by its client or a time limit; from ``horizon_ns`` on the caller knows nothing yet.
    """

    def __init__(
        self,
        instance: FusedInstance,
        cost: StepCost,
        sink: RowSink,
        *,
        outside: Outside,
        prefix_block_size: int,
    ) -> None:
        self.times = cost
        self.ends = EndTimes()
        self.tracks: dict[int, Track] = {}
        self.rows = self.preemptions = 0
        self.most_waiting = NEVER
        self.observe = None
        self.arrivals = ArrivalStream(())
        self._instance = instance
        self._displaces = instance.policy.displaces
        self._sink = sink
        self._patience, self._foresight = outside.patience, outside.foresight
        self._prefix_block_size = prefix_block_size
        self._cuts = [Due(at_ns, CANCEL, request) for request, at_ns in outside.cancels]
        self._cuts.extend(event.due() for event in outside.resets)
        heapq.heapify(self._cuts)
        self.next_ns = self.stop_ns = self.horizon_ns = NEVER
        self._set_cut()

    def open(self, arrivals: ArrivalStream, *, most_waiting: int) -> None:
        """From now on these requests arrive."""
        self.arrivals, self.next_ns, self.most_waiting = arrivals, arrivals.next_ns, most_waiting

    def play_to(self, stop_ns: Ns, horizon_ns: Ns) -> None:
        """From now on steps begin before ``stop_ns``; those that end before ``horizon_ns`` meet nobody unknown."""
        self.stop_ns, self.horizon_ns = stop_ns, horizon_ns
        self.bar_ns = min(self.cut_ns, horizon_ns)

    @property
    def nobody_comes(self) -> bool:
        """Whether no request will arrive any more."""
        return self.arrivals.over

    # --- what comes --------------------------------------------------------------------------------------------

    def deliver(self, now_ns: Ns) -> None:
        """What comes by ``now_ns``, in order of time; of arrivals only while fewer than `most_waiting` wait."""
        self.deliver_all(now_ns, most_waiting=self.most_waiting)

    def deliver_all(self, now_ns: Ns, *, most_waiting: int = NEVER) -> None:
        """As `deliver`, whoever waits already."""
        instance = self._instance
        while True:
            cut_ns = self.cut_ns
            if self.next_ns <= now_ns and self.next_ns <= cut_ns and instance.waiting < most_waiting:
                self._arrive()
            elif cut_ns <= now_ns:
                self._cut(heapq.heappop(self._cuts))
            else:
                return

    def _arrive(self) -> None:
        at_ns, planned = self.arrivals.take()
        self.next_ns = self.arrivals.next_ns
        self.tracks[planned.index] = Track(at_ns, planned.output_tokens)
        foreseen = None if self._foresight is None else self._foresight.of(planned)
        spec = RequestSpec.from_planned(
            planned, arrival_ns=at_ns, prefix_block_size=self._prefix_block_size, foreseen=foreseen
        )
        refused = self._instance.submit(spec, at_ns)
        if refused is not None:
            self._row(refused, at_ns, planned.prompt_tokens, 0)
            return
        if planned.cancel_ns is not None or self._patience:
            for due in cuts_of(planned, at_ns, self._patience):
                heapq.heappush(self._cuts, due)
            self._set_cut()
        if self._displaces:
            self._displace(at_ns)

    def _displace(self, at_ns: Ns) -> None:
        number = self._instance.displaced()
        live = None if number is None else self._instance.live.get(number)
        ended = displace(self._instance)
        if live is not None and ended is not None:
            self.over(live, ended, at_ns)

    def _set_cut(self) -> None:
        self.cut_ns = self._cuts[0].at_ns if self._cuts else NEVER
        self.bar_ns = min(self.cut_ns, self.horizon_ns)

    def _cut(self, due: Due) -> None:
        self._set_cut()
        if reset(self._instance, due):
            return
        live = self._instance.live.get(due.request)
        ended = None if live is None else cut(self._instance, due)
        if live is not None and ended is not None:
            self.over(live, ended, due.at_ns)

    # --- what the instance does --------------------------------------------------------------------------------

    def started(self, request: LiveRequest, at_ns: Ns) -> None:
        """Note when a request came in for the first time, and what it found in the cache."""
        track = self.tracks[request.id]
        if track.started_ns is None:
            track.started_ns, track.hit_tokens = at_ns, request.hit_tokens

    def emitted(self, request: LiveRequest, at_ns: Ns) -> int:
        """Note a request's first token; returns how many its answer still has."""
        track = self.tracks[request.id]
        if track.first_ns is None:
            self.note_first(request.id, at_ns)
        return track.output + request.spec.prompt_tokens - request.known

    def note_first(self, request: int, at_ns: Ns) -> None:
        """A request emitted a token, its first or a later one."""
        track = self.tracks[request]
        if track.first_ns is None:
            track.first_ns = at_ns

    def finished(self, request: LiveRequest, reason: str, at_ns: Ns) -> None:
        """Keep the row of a request that has emitted its last token."""
        prompt = request.spec.prompt_tokens
        self.preemptions += request.preemptions
        track = self.tracks.pop(request.id)
        self.rows += 1
        self._sink(
            RequestRow(
                request.id,
                track.arrival_ns,
                track.started_ns,
                track.first_ns,
                at_ns,
                _FINISHED,
                reason,
                prompt,
                request.known - prompt,
                request.preemptions,
                track.hit_tokens,
            )
        )
        if not self.arrivals.independent:
            self._next_turn(request.id, at_ns)

    def over(self, live: LiveRequest, ended: Ended, at_ns: Ns) -> None:
        """Keep the row of a request that ended in any way."""
        self.preemptions += live.preemptions
        self._row(ended, at_ns, live.spec.prompt_tokens, live.preemptions)

    def _row(self, ended: Ended, at_ns: Ns, prompt: int, preemptions: int) -> None:
        track = self.tracks.pop(ended.request)
        self.rows += 1
        self._sink(
            RequestRow(
                ended.request,
                track.arrival_ns,
                track.started_ns,
                track.first_ns,
                at_ns,
                ended.outcome,
                ended.reason,
                prompt,
                ended.output_tokens,
                preemptions,
                track.hit_tokens,
            )
        )
        if not self.arrivals.independent:
            self._next_turn(ended.request, at_ns)

    def _next_turn(self, request: int, at_ns: Ns) -> None:
        self.arrivals.ended(request, at_ns)
        self.next_ns = self.arrivals.next_ns
