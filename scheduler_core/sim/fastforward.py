"""The fast simulator: the driver's loop on the planner's own decisions, with work per event instead of per token.

Exact: each step is planned by the same planner under the same policy, or is the repetition of one, and takes the time
that the cost model gives for it; the records per request are those of a plain run.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from scheduler_core.drive.cuts import CANCEL, Due, cut, cuts_of
from scheduler_core.request.live import LiveRequest
from scheduler_core.request.spec import RequestSpec
from scheduler_core.sched.commit import AT_LIMIT, STOPPED
from scheduler_core.sched.fused import FusedInstance
from scheduler_core.sched.plan import Ended, FusedStep
from scheduler_core.sched.policy import PolicySet
from scheduler_core.sim.arrivals import ArrivalStream
from scheduler_core.sim.cost import StepCost
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.errors import LawError
from scheduler_core.types.patience import Patience
from scheduler_core.types.plan import Phase
from scheduler_core.types.shape import causal_pairs, joins
from scheduler_core.types.time import Ns

# Bound once: in CPython 3.11 reading a member off its enum class costs ten times a global.
_DECODE = Phase.DECODE

LEAST_QUEUE = 64


class RequestRow(NamedTuple):
    """What happened to one request; times in ns from the start, None where it never came that far."""

    request: int
    arrival_ns: Ns
    started_ns: Ns | None
    first_token_ns: Ns | None
    end_ns: Ns
    outcome: str
    reason: str
    prompt_tokens: int
    output_tokens: int
    preemptions: int
    hit_tokens: int


RowSink: TypeAlias = Callable[[RequestRow], None]
"""Receives rows in order of the requests' ends."""


class FastReport(NamedTuple):
    """Totals of a simulation. ``planned`` of the ``steps`` went through the planner, the rest repeated one."""

    steps: int
    planned: int
    requests: int
    end_ns: Ns
    preemptions: int


class _Track:
    """What the simulator alone knows of an open request."""

    __slots__ = ("arrival_ns", "first_ns", "hit_tokens", "output", "started_ns")

    def __init__(self, arrival_ns: Ns, output: int) -> None:
        self.arrival_ns = arrival_ns
        self.output = output
        self.hit_tokens = 0
        self.started_ns: Ns | None = None
        self.first_ns: Ns | None = None


class FastForward:
    """Plays requests through a policy on a modelled target.

    ``cancels`` are (request index, time) at which its client gives up, beside those of the requests; ``patience`` has
    the time limits of tiers.
    ``observe`` is called for each step, planned or repeated, with the step and its start and end, before it is
    completed; it is for tests and step records.
    """

    def __init__(
        self,
        policy: PolicySet,
        cost: StepCost,
        sink: RowSink,
        *,
        prefix_block_size: int = 16,
        cancels: Iterable[tuple[int, Ns]] = (),
        patience: Mapping[str, Patience] | None = None,
        observe: Callable[[FusedStep, Ns, Ns], None] | None = None,
    ) -> None:
        self.instance = FusedInstance(policy)
        self._policy = policy
        self._cost = cost
        self._sink = sink
        self._prefix_block_size = prefix_block_size
        self._observe = observe
        self._tracks: dict[int, _Track] = {}
        self._ends: dict[
            int, list[tuple[int, int, int, str]]
        ] = {}  # tick -> members that end then: id, epoch, tick of joining, reason
        self._end_ticks: list[int] = []
        self._cuts = [Due(at_ns, CANCEL, request) for request, at_ns in cancels]
        heapq.heapify(self._cuts)
        self._patience = patience or {}
        self._now: Ns = 0
        self._ended: Ns = 0
        self._planned = self._steps = self._rows = self._preemptions = 0
        self._patient = policy.order.first_come and not policy.limits.queue_limit
        self._queue = max(LEAST_QUEUE, policy.limits.size + 1)

    def run(self, requests: Iterable[PlannedRequest]) -> FastReport:
        """Play all ``requests`` to their end."""
        arrivals = ArrivalStream(requests)
        instance = self.instance
        # With first come, first served, who stands behind a blocked head matters only when the head moves: arrivals
        # stay in the stream until the queue runs low. Time and memory then do not grow with the backlog.
        lazy = self._patient and arrivals.independent
        while True:
            self._deliver(arrivals, self._now, most=self._queue if lazy else None)
            at_ns = arrivals.next_ns
            if at_ns is None and arrivals.over:
                instance.close_arrivals()
            step = instance.plan_fused(self._now)
            if step is not None:
                self._planned += 1
                self._play(step, arrivals)
                continue
            times = [at for at in (at_ns, instance.next_wakeup(self._now)) if at is not None]
            if self._tracks and self._cuts:
                times.append(self._cuts[0].at_ns)
            if not times:
                break
            self._now = max(self._now, min(times))
        if self._tracks:
            raise LawError(f"{len(self._tracks)} requests are open, but nothing is due any more")
        return FastReport(self._steps, self._planned, self._rows, self._now, self._preemptions)

    def _arrive(self, arrivals: ArrivalStream) -> None:
        at_ns, planned = arrivals.take()
        self._tracks[planned.index] = _Track(at_ns, planned.output_tokens)
        spec = RequestSpec.from_planned(planned, arrival_ns=at_ns, prefix_block_size=self._prefix_block_size)
        refused = self.instance.submit(spec, at_ns)
        if refused is not None:
            self._row(refused, at_ns, planned.prompt_tokens, 0)
            arrivals.ended(planned.index, at_ns)
            return
        if planned.cancel_ns is not None or self._patience:
            for due in cuts_of(planned, at_ns, self._patience):
                heapq.heappush(self._cuts, due)

    def _deliver(self, arrivals: ArrivalStream, until_ns: Ns, *, most: int | None = None) -> None:
        """What comes by ``until_ns``, in order of time; of arrivals only while fewer than ``most`` wait."""
        while True:
            cut_ns = self._cuts[0].at_ns if self._cuts and self._cuts[0].at_ns <= until_ns else None
            at_ns = arrivals.next_ns
            if (
                at_ns is not None
                and at_ns <= (until_ns if cut_ns is None else cut_ns)
                and (most is None or self.instance.waiting < most)
            ):
                self._arrive(arrivals)
            elif cut_ns is not None:
                self._cut(heapq.heappop(self._cuts), arrivals)
            else:
                return

    def _cut(self, due: Due, arrivals: ArrivalStream) -> None:
        live = self.instance.live.get(due.request)
        ended = None if live is None else cut(self.instance, due)
        if live is not None and ended is not None:
            self._preemptions += live.preemptions
            self._row(ended, due.at_ns, live.spec.prompt_tokens, live.preemptions)
            arrivals.ended(due.request, due.at_ns)

    def _play(self, step: FusedStep, arrivals: ArrivalStream) -> None:
        """Execute a step, and as long as nothing can change it, the same again."""
        wake = self._cost.wake_ns(self._now - self._ended)
        if not step.may_repeat:
            self._complete(step, self._now + self._duration_ns(step) + wake, arrivals)
            return
        instance, duration_ns, decoders, number = self.instance, self._cost.duration_ns, step.decoders, step.id
        cohort, observe = instance.cohort, self._observe
        wanted = None if self._patient and instance.waiting else arrivals.next_ns  # a blocked head ignores newcomers
        last_tick = self._end_ticks[0] - 1
        while True:
            end = self._now + duration_ns(0, decoders, cohort.context_tokens, 0, number) + wake
            wake = 0
            if cohort.tick >= last_tick or (self._cuts and self._cuts[0].at_ns <= end):
                self._complete(FusedStep(number, (), decoders, cohort.context_tokens, True), end, arrivals)
                # Fewer go on and nobody waits for their place: still the same step, without them.
                wanted = arrivals.next_ns
                if instance.waiting or not cohort.count or (wanted is not None and wanted <= end):
                    return
                if not instance.repeat():
                    return
                decoders, last_tick, number = cohort.count, self._end_ticks[0] - 1, number + 1
                continue
            if observe is not None:
                observe(FusedStep(number, (), decoders, cohort.context_tokens, True), self._now, end)
            self._steps += 1
            self._now = self._ended = end
            instance.complete_repeat()
            if (wanted is not None and wanted <= end) or not instance.repeat():
                return
            number += 1

    def _duration_ns(self, step: FusedStep) -> Ns:
        prefill = pairs = joined = 0
        decoders, context = step.decoders, step.context_tokens if step.decoders else 0
        for grant in step.grants:
            length = grant.length
            joined += joins(grant)
            if grant.phase is _DECODE:
                decoders += 1
                context += grant.start + length
            else:
                prefill += length
                pairs += causal_pairs(grant.start, length)
        return self._cost.duration_ns(prefill, decoders, context, pairs, step.id, joined)

    def _complete(self, step: FusedStep, end: Ns, arrivals: ArrivalStream) -> None:
        instance = self.instance
        start, self._now, self._ended = self._now, end, end
        if self._observe is not None:
            self._observe(step, start, end)
        self._steps += 1
        if self._policy.account is not None or (self._cuts and self._cuts[0].at_ns <= end):
            # Who comes during a step meets the account as it was before its tokens; who ends in it gets none of them.
            self._note_starts(step, start)
            instance.during(step)
            self._deliver(arrivals, end)
        tick = instance.cohort.tick + 1
        ends = self._ends_of_tick(tick) if step.decoders and self._end_ticks and self._end_ticks[0] <= tick else {}
        for grant in step.grants:
            track = self._tracks.get(grant.request)
            if track is None:
                continue  # it was ended while the step ran
            if track.started_ns is None:
                track.started_ns, track.hit_tokens = start, grant.hit_tokens
            if grant.samples:
                if track.first_ns is None:
                    track.first_ns = end
                if instance.live[grant.request].emitted + 1 >= track.output:
                    ends[grant.request] = STOPPED
        joined, over = instance.complete_fused(step, ends)
        for live in joined:
            self._schedule_end(live)
        for live, ended in over:
            self._preemptions += live.preemptions
            self._row(ended, end, live.spec.prompt_tokens, live.preemptions)
            if not arrivals.independent:
                arrivals.ended(ended.request, end)

    def _note_starts(self, step: FusedStep, start: Ns) -> None:
        for grant in step.grants:
            track = self._tracks[grant.request]
            if track.started_ns is None:
                track.started_ns, track.hit_tokens = start, grant.hit_tokens

    def _schedule_end(self, live: LiveRequest) -> None:
        """Note the tick at which a new member of the cohort emits its last token."""
        true_left = self._tracks[live.id].output - live.emitted
        limit_left = live.stop_at - live.known
        left, reason = (true_left, STOPPED) if true_left <= limit_left else (limit_left, AT_LIMIT)
        tick = live.joined + left
        entry = (live.id, live.epoch, live.joined, reason)
        if tick in self._ends:
            self._ends[tick].append(entry)
        else:
            self._ends[tick] = [entry]
            heapq.heappush(self._end_ticks, tick)

    def _ends_of_tick(self, tick: int) -> dict[int, str]:
        """Members that emit their last token at ``tick``; who left the cohort meanwhile is passed over."""
        ends: dict[int, str] = {}
        while self._end_ticks and self._end_ticks[0] <= tick:
            for request, epoch, joined, reason in self._ends.pop(heapq.heappop(self._end_ticks)):
                live = self.instance.live.get(request)
                if live is not None and live.epoch == epoch and live.joined == joined:
                    ends[request] = reason
        return ends

    def _row(self, ended: Ended, end_ns: Ns, prompt: int, preemptions: int) -> None:
        track = self._tracks.pop(ended.request)
        self._rows += 1
        self._sink(
            RequestRow(
                ended.request,
                track.arrival_ns,
                track.started_ns,
                track.first_ns,
                end_ns,
                ended.outcome,
                ended.reason,
                prompt,
                ended.output_tokens,
                preemptions,
                track.hit_tokens,
            )
        )
