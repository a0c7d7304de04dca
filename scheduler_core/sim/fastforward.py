"""The fast simulator: the driver's loop on the planner's own decisions, with work per event instead of per token.

Exact: each step is planned by the same rules under the same policy, or is the repetition of one, and takes the time
that the cost model gives for it; the records per request are those of a plain run.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from scheduler_core.drive.cuts import CANCEL, Due, cut, cuts_of
from scheduler_core.request.live import APART, LiveRequest
from scheduler_core.request.spec import RequestSpec
from scheduler_core.sched.commit import STOPPED
from scheduler_core.sched.fused import FusedInstance
from scheduler_core.sched.plan import Ended, FusedStep
from scheduler_core.sched.policy import PolicySet
from scheduler_core.sched.undisturbed import Undisturbed
from scheduler_core.sim.arrivals import ArrivalStream
from scheduler_core.sim.cost import StepCost
from scheduler_core.sim.ends import EndTimes
from scheduler_core.sim.rows import RequestRow, RowSink, Track
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.errors import LawError
from scheduler_core.types.patience import Patience
from scheduler_core.types.plan import Phase
from scheduler_core.types.shape import causal_pairs, joins
from scheduler_core.types.time import Ns

# Bound once: in CPython 3.11 reading a member off its enum class costs ten times a global.
_DECODE = Phase.DECODE

LEAST_QUEUE = 64


class FastReport(NamedTuple):
    """Totals of a simulation. ``planned`` of the ``steps`` were planned, the rest repeated one."""

    steps: int
    planned: int
    requests: int
    end_ns: Ns
    preemptions: int


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
        self._tracks: dict[int, Track] = {}
        self._ends = EndTimes()
        self._cuts = [Due(at_ns, CANCEL, request) for request, at_ns in cancels]
        heapq.heapify(self._cuts)
        self._patience = patience or {}
        self._now: Ns = 0
        self._busy_until: Ns = 0
        self._planned = self._steps = self._rows = self._preemptions = 0
        self._patient = policy.order.first_come and not policy.limits.queue_limit
        self._queue = max(LEAST_QUEUE, policy.limits.size + 1)

    def run(self, requests: Iterable[PlannedRequest]) -> FastReport:
        """Play all ``requests`` to their end."""
        arrivals = ArrivalStream(requests)
        instance, undisturbed = self.instance, self.instance.undisturbed
        # With first come, first served, who stands behind a blocked head matters only when the head moves: arrivals
        # stay in the stream until the queue runs low. Time and memory then do not grow with the backlog.
        queue = self._queue if self._patient and arrivals.independent else None
        while True:
            self._deliver(arrivals, self._now, most=queue)
            at_ns = arrivals.next_ns
            if at_ns is None and arrivals.over:
                instance.close_arrivals()
            if undisturbed is not None and undisturbed.plan(self._now):
                self._glide(undisturbed, arrivals)
                continue
            step = instance.plan_fused(self._now)
            if step is not None:
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
        self._tracks[planned.index] = Track(at_ns, planned.output_tokens)
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

    # --- steps -------------------------------------------------------------------------------------------------

    def _glide(self, plan: Undisturbed, arrivals: ArrivalStream) -> None:
        """Execute an undisturbed step; if only the cohort runs, the same again as long as nothing can change it."""
        self._planned += 1
        instance, start = self.instance, self._now
        if not plan.served and plan.decoders == instance.running:
            self._repeat(plan.number, arrivals)
            return
        end = start + self._cost.duration_ns(
            plan.prefill_tokens, plan.decoders, plan.context_tokens, plan.prefill_pairs, plan.number, plan.joined
        )
        end += self._cost.wake_ns(start - self._busy_until)
        if self._cuts and self._cuts[0].at_ns <= end:
            self._complete(plan.step(), end, arrivals)
            return
        self._now = self._busy_until = end
        self._steps += 1
        cohort, tracks = instance.cohort, self._tracks
        if self._observe is not None:
            self._observe(plan.step(), start, end)
        due = cohort.count and cohort.tick >= self._ends.next_tick - 1
        ends = self._ends.take(cohort.tick + 1, instance.live) if due else {}
        for request, _, _ in plan.served:
            track = tracks[request.id]
            if track.started_ns is None:
                track.started_ns, track.hit_tokens = start, request.hit_tokens
        for request in plan.sampled:
            track = tracks[request.id]
            if track.first_ns is None:
                track.first_ns = end
            if request.emitted + 1 >= track.output:
                ends[request.id] = STOPPED
        over = plan.complete(ends)
        for request in plan.sampled:
            if request.joined != APART:
                self._ends.schedule(request, tracks[request.id].output)
        for live, ended in over:
            self._over(live, ended, arrivals)

    def _play(self, step: FusedStep, arrivals: ArrivalStream) -> None:
        """Execute a step of the planner's; if only the cohort runs, the same again as long as nothing can change it."""
        self._planned += 1
        if step.may_repeat:
            self._repeat(step.id, arrivals)
            return
        wake = self._cost.wake_ns(self._now - self._busy_until)
        self._complete(step, self._now + self._duration_ns(step) + wake, arrivals)

    def _repeat(self, number: int, arrivals: ArrivalStream) -> None:
        """Execute step ``number``, in which the cohort alone runs, and the same again until something may change it."""
        instance, duration_ns, observe = self.instance, self._cost.duration_ns, self._observe
        cohort = instance.cohort
        decoders, last_tick = cohort.count, self._ends.next_tick - 1
        wanted = None if self._patient and instance.waiting else arrivals.next_ns  # a blocked head ignores newcomers
        wake = self._cost.wake_ns(self._now - self._busy_until)
        while True:
            end = self._now + duration_ns(0, decoders, cohort.context_tokens, 0, number) + wake
            wake = 0
            if cohort.tick >= last_tick or (self._cuts and self._cuts[0].at_ns <= end):
                self._complete(FusedStep(number, (), decoders, cohort.context_tokens, True), end, arrivals)
                # Fewer go on and nobody waits for their place: still the same step, without them.
                wanted = arrivals.next_ns
                if instance.waiting or not cohort.count:
                    return
                decoders, last_tick = cohort.count, self._ends.next_tick - 1
            else:
                if observe is not None:
                    observe(FusedStep(number, (), decoders, cohort.context_tokens, True), self._now, end)
                self._steps += 1
                self._now = self._busy_until = end
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
        instance, tracks = self.instance, self._tracks
        start, self._now, self._busy_until = self._now, end, end
        if self._observe is not None:
            self._observe(step, start, end)
        self._steps += 1
        if self._policy.account is not None or (self._cuts and self._cuts[0].at_ns <= end):
            # Who comes during a step meets the account as it was before its tokens; who ends in it gets none of them.
            self._note_starts(step, start)
            instance.during(step)
            self._deliver(arrivals, end)
        due = step.decoders and instance.cohort.tick >= self._ends.next_tick - 1
        ends = self._ends.take(instance.cohort.tick + 1, instance.live) if due else {}
        for grant in step.grants:
            track = tracks.get(grant.request)
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
            self._ends.schedule(live, tracks[live.id].output)
        for live, ended in over:
            self._over(live, ended, arrivals)

    def _note_starts(self, step: FusedStep, start: Ns) -> None:
        for grant in step.grants:
            track = self._tracks[grant.request]
            if track.started_ns is None:
                track.started_ns, track.hit_tokens = start, grant.hit_tokens

    # --- ends --------------------------------------------------------------------------------------------------

    def _over(self, live: LiveRequest, ended: Ended, arrivals: ArrivalStream) -> None:
        self._preemptions += live.preemptions
        self._row(ended, self._now, live.spec.prompt_tokens, live.preemptions)
        if not arrivals.independent:
            arrivals.ended(ended.request, self._now)

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
