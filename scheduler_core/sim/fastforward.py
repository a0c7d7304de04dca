"""The fast simulator: the driver's loop on the planner's own decisions, with work per event instead of per token.

Exact: each step is planned by the same rules under the same policy, or is the repetition of one, and takes the time
that the cost model gives for it; the records per request are those of a plain run.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from scheduler_core.drive.cuts import Outside
from scheduler_core.sched.commit import STOPPED
from scheduler_core.sched.fused import FusedInstance
from scheduler_core.sched.plan import FusedStep
from scheduler_core.sched.policy import PolicySet
from scheduler_core.sim.arrivals import ArrivalStream
from scheduler_core.sim.cost import StepCost
from scheduler_core.sim.rows import RowSink
from scheduler_core.sim.world import SimulatedWorld
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.errors import CallerError, LawError
from scheduler_core.types.plan import Grant
from scheduler_core.types.time import NEVER, Ns

LEAST_QUEUE = 64
NOTHING = Outside()


class FastReport(NamedTuple):
    """Totals of a simulation. ``planned`` of the ``steps`` were planned, the rest repeated one."""

    steps: int
    planned: int
    requests: int
    end_ns: Ns
    preemptions: int


class Player:
    """Plays the steps of one instance, as far as it is told to, and goes on where it stopped.

    Refused (`CallerError`) where a step's time depends on which attention replica each request is on: here only sums
    over requests are kept.
    """

    def __init__(self, instance: FusedInstance, cost: StepCost, world: SimulatedWorld) -> None:
        if cost.knows_replicas:
            raise CallerError("a fast simulation does not know which attention replica a request is on; play the run")
        policy = instance.policy
        self.instance = instance
        self._policy = policy
        self._cost = cost
        self._world = world
        self._now: Ns = 0
        self._busy_until: Ns = 0
        self._planned = self._steps = 0
        self._begun: tuple[FusedStep, Ns] | None = None
        self._timed = policy.starvation_ns is not None or policy.gate is not None
        self._patient = policy.patient
        self._queue = max(LEAST_QUEUE, policy.limits.size + 1)

    @property
    def most_waiting(self) -> int:
        """How many independent requests the queue needs to be given at most.

        With first come, first served, who stands behind a blocked head matters only when the head moves: arrivals
        stay outside until the queue runs low. Time and memory then do not grow with the backlog.
        """
        return self._queue if self._patient else NEVER

    @property
    def now_ns(self) -> Ns:
        """How far it has played."""
        return self._now

    def poke(self, now_ns: Ns) -> None:
        """Something came from outside at ``now_ns``: an instance that is idle plans then, not when it was left."""
        if self._begun is None and self._now < now_ns:
            self._now = now_ns

    def play(self, until_ns: Ns = NEVER, *, horizon_ns: Ns = NEVER) -> Ns:
        """Play on: steps that begin before ``until_ns``, of which those that end at ``horizon_ns`` or later stay begun.

        Returns when there will be something to do if nothing comes from outside: a step to plan, or one to complete.
        What comes from outside must not be due before the last call's ``horizon_ns``, and not before its ``until_ns``
        unless a begun step is to meet it.
        """
        world, instance = self._world, self.instance
        world.play_to(until_ns, horizon_ns)
        if self._begun is not None:
            self._end_begun()
        while self._begun is None and self._now < world.stop_ns:
            world.deliver(self._now)
            idle = instance.idle
            if not idle and self._glide():
                continue
            if self._now >= world.stop_ns:
                break
            if world.nobody_comes:
                instance.close_arrivals()
            step = None if idle else instance.plan_fused(self._now)
            if step is not None:
                self._play(step)
                continue
            due = min(world.next_ns, NEVER if idle else self._wakes_ns(), world.cut_ns if world.tracks else NEVER)
            if due >= until_ns:
                return due
            self._now = max(self._now, due)
        return self._now if self._begun is None else self._begun[1]

    def quiet_until_ns(self, due_ns: Ns) -> Ns:
        """No request emits its first token or ends before this, if nothing comes from outside; ``due_ns`` is `play`'s.

        Where the cohort alone runs and nobody can come in or has to go, each step takes at least as long as the first,
        as context grows.
        """
        if due_ns == NEVER:
            return NEVER
        begun, world, cohort = self._begun, self._world, self.instance.cohort
        steps = world.ends.next_tick - cohort.tick - (begun is not None)
        alone = begun is None or not begun[0].grants
        known = self.instance.undisturbed is not None and world.times.decode_line(cohort.count) is not None
        if alone and known and steps > 0 and self.instance.steady(steps, newcomers=world.next_ns != NEVER):
            return due_ns + steps * world.times.decode_ns(cohort.count, cohort.context_tokens, 0)
        return due_ns if begun is not None else due_ns + 1

    def report(self) -> FastReport:
        """Totals so far."""
        steps, planned, undisturbed = self._steps, self._planned, self.instance.undisturbed
        if undisturbed is not None:
            steps += undisturbed.steps
            planned += undisturbed.planned
        return FastReport(steps, planned, self._world.rows, self._now, self._world.preemptions)

    # --- steps -------------------------------------------------------------------------------------------------

    def _glide(self) -> bool:
        """Play steps as long as nobody is disturbed; false when the planner must be asked now."""
        loop, world = self.instance.undisturbed, self._world
        if loop is None or self.instance.to_reset:
            return False
        before, wake = loop.steps, self._cost.wake_ns(self._now - self._busy_until)
        self._now = loop.play(world, self._now, wake_ns=wake, most_waiting=world.most_waiting)
        if loop.steps != before:
            self._busy_until = self._now
        if loop.pending is None:
            return False
        step, end = loop.pending
        loop.pending = None
        self._complete(step, end)
        return True

    def _play(self, step: FusedStep) -> None:
        """Execute a step of the planner's; if only the cohort runs, the same again as long as nothing can change it."""
        self._planned += 1
        if step.may_repeat:
            self._repeat(step.id)
            return
        more = self._cost.wake_ns(self._now - self._busy_until)
        if step.copied_out or step.copied_in:
            more += self._cost.copy_ns(step.copied_out, step.copied_in, self._policy.limits.block_size)
        if step.grants:
            takes_ns = self._cost.step_ns(step.shape(), step.id)
        else:
            takes_ns = self._cost.decode_ns(step.decoders, step.context_tokens, step.id)
        self._complete(step, self._now + takes_ns + more)

    def _repeat(self, number: int) -> None:
        """Execute step ``number``, in which the cohort alone runs, and the same again until something may change it."""
        instance, world, cohort = self.instance, self._world, self.instance.cohort
        decoders = cohort.count
        wanted = self._next_change()
        wake = self._cost.wake_ns(self._now - self._busy_until)
        while True:
            end = self._now + world.times.decode_ns(decoders, cohort.context_tokens, number) + wake
            wake = 0
            if cohort.tick + 1 >= world.ends.next_tick or world.bar_ns <= end:
                self._complete(FusedStep(number, (), decoders, cohort.context_tokens, True), end)
                if self._begun is not None:
                    return
                # Fewer go on and nobody waits for their place: still the same step, without them.
                wanted = self._next_change()
                if instance.blocked or not cohort.count:
                    return
                decoders = cohort.count
            else:
                if world.observe is not None:
                    world.observe(FusedStep(number, (), decoders, cohort.context_tokens, True), self._now, end)
                self._steps += 1
                self._now = self._busy_until = end
                instance.complete_repeat()
            if wanted <= end or not instance.repeat():
                return
            number += 1

    def _next_change(self) -> Ns:
        """When the next step may differ: somebody comes, unless a blocked head ignores newcomers; or by time alone.

        At once where the planner has to be asked for another reason.
        """
        world = self._world
        if self.instance.to_reset:
            return self._now
        at_ns = world.stop_ns if self._patient and self.instance.waiting else min(world.stop_ns, world.next_ns)
        wake = self.instance.next_wakeup(self._now) if self._timed else None
        return at_ns if wake is None else min(wake, at_ns)

    def _wakes_ns(self) -> Ns:
        """When the policy may answer differently by time alone. A time that has passed moves nothing any more."""
        wakes = self.instance.next_wakeup(self._now)
        return NEVER if wakes is None or wakes <= self._now else wakes

    def _complete(self, step: FusedStep, end: Ns) -> None:
        """Complete a step, if nobody from outside may meet it that is not known yet; else it is begun."""
        if self._world.observe is not None:
            self._world.observe(step, self._now, end)
        self._note_starts(step, self._now)
        self._begun = step, end
        if end < self._world.horizon_ns:
            self._end_begun()
        else:
            self.instance.during(step)

    def _end_begun(self) -> None:
        """Complete the step that was begun, unless it ends beyond the horizon."""
        instance, world, tracks = self.instance, self._world, self._world.tracks
        begun = self._go_on_begun()
        if begun is None or begun[1] >= world.horizon_ns:
            return
        step, end = begun
        self._begun = None
        self._now = self._busy_until = end
        self._steps += 1
        if self._policy.account is not None or self._policy.gate is not None or world.cut_ns <= end:
            # Who comes during a step meets the account as it was before its tokens; who ends in it gets none of them.
            instance.during(step)
            world.deliver_all(end)
        ends, accepted = dict[int, str](), dict[int, int]()
        if step.decoders and instance.cohort.tick + 1 >= world.ends.next_tick:
            ends = {member.id: reason for member, reason in world.ends.take(instance.cohort.tick + 1)}
        for grant in step.grants:
            track = tracks.get(grant.request)
            if track is not None and grant.samples:  # None: it was ended while the step ran
                world.note_first(grant.request, end)
                left = track.output - instance.live[grant.request].emitted
                if grant.drafts:
                    left -= accepted.setdefault(grant.request, self._accepted(grant, left))
                if left <= 1:
                    ends[grant.request] = STOPPED
        joined, over = instance.complete_fused(step, ends, accepted)
        for live in joined:
            world.ends.schedule(live, tracks[live.id].output - live.emitted)
        for live, ended in over:
            world.over(live, ended, end)

    def _accepted(self, grant: Grant, left: int) -> int:
        """How many drafts of a request are, whose answer has ``left`` tokens to go."""
        drafts, live = self._cost.drafts, self.instance.live[grant.request]
        if drafts is None:
            raise CallerError(f"request {live.id} has drafts, and nobody says what a draft is worth")
        return drafts.accepted(live.spec.draw_seed, live.emitted, grant.drafts, left)

    def _go_on_begun(self) -> tuple[FusedStep, Ns] | None:
        """Where the cohort alone runs, play the begun step and its repetitions as long as only counts change.

        Returns what is begun then, if anything is.
        """
        assert self._begun is not None
        step, end = self._begun
        instance, world, cohort = self.instance, self._world, self.instance.cohort
        before, until_ns = step.id, min(world.stop_ns, world.next_ns)
        if end >= world.bar_ns or world.observe is not None or not instance.goes_on_alone(step):
            return self._begun
        number, count = before, cohort.count
        while end < world.bar_ns:
            instance.complete_repeat()
            self._steps += 1
            self._now = self._busy_until = end
            over = cohort.tick >= world.ends.next_tick
            if over:
                instance.finish(world, end)
            if over or until_ns <= end or not instance.repeat():
                self._begun = None
                return None
            number += 1
            end += world.times.decode_ns(count, cohort.context_tokens, number)
        if number != before:
            step = FusedStep(number, (), count, cohort.context_tokens, True)
            instance.during(step)
        self._begun = step, end
        return self._begun

    def _note_starts(self, step: FusedStep, start: Ns) -> None:
        for grant in step.grants:
            track = self._world.tracks[grant.request]
            if track.started_ns is None:
                track.started_ns, track.hit_tokens = start, grant.hit_tokens


class FastForward(Player):
    """Plays requests through a policy on a modelled target.

    ``outside`` is what reaches it beside the requests.
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
        outside: Outside = NOTHING,
        observe: Callable[[FusedStep, Ns, Ns], None] | None = None,
    ) -> None:
        instance = FusedInstance(policy)
        world = SimulatedWorld(instance, cost, sink, outside=outside, prefix_block_size=prefix_block_size)
        world.observe = observe
        super().__init__(instance, cost, world)

    def run(self, requests: Iterable[PlannedRequest]) -> FastReport:
        """Play all ``requests`` to their end."""
        arrivals = ArrivalStream(requests)
        self._world.open(arrivals, most_waiting=self.most_waiting if arrivals.independent else NEVER)
        self.play()
        if self._world.tracks:
            raise LawError(f"{len(self._world.tracks)} requests are open, but nothing is due any more")
        return self.report()
