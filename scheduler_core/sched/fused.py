"""An instance for simulations, in which decoding requests advance together."""

from collections.abc import Mapping

from scheduler_core.request.live import APART, LiveRequest
from scheduler_core.sched.cohort import Cohort
from scheduler_core.sched.commit import NOTHING_ACCEPTED, FusedEffects, commit_fused
from scheduler_core.sched.counted_memory import CountedMemory
from scheduler_core.sched.decisions import Publish
from scheduler_core.sched.extent_memory import ExtentMemory
from scheduler_core.sched.instance import Instance
from scheduler_core.sched.laws import check_liveness
from scheduler_core.sched.memory import Memory
from scheduler_core.sched.plan import FusedStep
from scheduler_core.sched.policy import PolicySet
from scheduler_core.sched.resetting import due_reset
from scheduler_core.sched.undisturbed import Undisturbed, may_be_undisturbed
from scheduler_core.sched.world import World
from scheduler_core.types.plan import Phase
from scheduler_core.types.time import Ns


class FusedInstance(Instance):
    """The same instance for simulations: running requests that have caught up advance together, not one by one.

    Same planner, same policy, same decisions in the same order; only the unit of bookkeeping differs. Steps are
    planned and completed one after the other, and evidence is what the caller keeps. Blocks have no identity where
    counts say all there is to say: without a prefix cache, and with one by hash in order of release.
    """

    def __init__(self, policy: PolicySet) -> None:
        super().__init__(policy)
        state = self._state
        state.keeps_records = False
        state.memory = _memory_for(policy) or state.memory
        by_member = state.memory.by_member
        self._publishes_late = by_member and policy.publish is Publish.AT_CONFIRM
        self._publishes_early = by_member and policy.publish is Publish.AT_GRANT
        self._moves = policy.cache.copies or policy.share_samples
        self._keeps_evicted = policy.cache.host_prefix_blocks > 0
        self._clean_low = policy.cache.clean_low
        self._keeps_room = policy.swapping is not None
        self.undisturbed = Undisturbed(state, policy) if may_be_undisturbed(policy) else None

    @property
    def waiting(self) -> int:
        """Requests that wait. O(1)."""
        state = self._state
        return state.queued if state.queues_stopped else len(state.waiting)

    @property
    def running(self) -> int:
        """Requests that run. O(1)."""
        return len(self._state.running)

    @property
    def blocks(self) -> tuple[int, int, int]:
        """KV blocks in use, cached and clean now. O(1)."""
        memory = self._state.memory
        return memory.used, memory.cached, memory.clean

    @property
    def blocked(self) -> bool:
        """Whether requests wait, or are stopped, for want of what those that end will give up."""
        return bool(self._state.waiting or self._state.stopped)

    def steady(self, steps: int, *, newcomers: bool) -> bool:
        """Whether the cohort alone runs in the next ``steps`` steps, if it stays as it is. O(1).

        Nobody else runs; who waits or comes (``newcomers``) finds no slot; and the pool has room for all.
        """
        state, limits = self._state, self.policy.limits
        cohort = state.cohort
        if (
            state.reset is not None
            or state.apart
            or state.stopped
            or not cohort.count
            or cohort.count > limits.token_budget
        ):
            return False
        if (newcomers or state.waiting) and len(state.running) < limits.size:
            return False
        room = state.memory.clean if self._keeps_evicted else state.memory.free
        return cohort.count * (steps // limits.block_size + 1) <= room

    @property
    def idle(self) -> bool:
        """Whether nobody runs or waits, and no rule goes by time, so that there is nothing to plan. O(1)."""
        state = self._state
        nobody = not (state.running or state.waiting or state.stopped)
        return nobody and self.undisturbed is not None and state.reset is None

    def goes_on_alone(self, step: FusedStep) -> bool:
        """Whether the step after ``step`` is the same again, if nobody ends or comes. O(1)."""
        undisturbed = self.undisturbed is not None and step.may_repeat and not self._state.waiting
        return undisturbed and self.steady(1, newcomers=False)

    @property
    def to_reset(self) -> bool:
        """Whether a reset of the cache waits for the next planning."""
        return self._state.reset is not None

    @property
    def cohort(self) -> Cohort:
        """Requests that advance together; to be read only."""
        return self._state.cohort

    def plan_fused(self, now_ns: Ns) -> FusedStep | None:
        """As `plan`; complete it with `complete_fused` before planning again."""
        state, builder = self._state, self._builder
        if state.reset is not None:
            due_reset(state, self.policy, now_ns)
        self._build(now_ns)
        if state.records and not state.keeps_records:
            state.records.clear()  # of what was revoked
        decoders = builder.decoders
        if builder.grants:
            grants, repeats = tuple(builder.grants.values()), False
        elif decoders:
            grants, repeats = (), not builder.preempted and decoders == len(state.running)
            repeats = repeats and not builder.evicted_ahead
            if self.policy.arrange is not None and state.waiting:
                repeats = False  # every step may put another one first
        else:
            check_liveness(state, self.next_wakeup(now_ns))
            return None
        number = state.next_step
        state.next_step += 1
        context, gone = state.cohort.context_tokens, builder.evicted_ahead
        if not self._moves:
            return FusedStep(number, grants, decoders, context, repeats, evicted_ahead=gone)
        moves = state.memory.take_moves()
        out, back, apart = len(moves.copies_out), len(moves.copies_in), len(moves.copies_on_write)
        repeats = repeats and not out and not back
        return FusedStep(number, grants, decoders, context, repeats, out, back, gone, apart)

    def during(self, step: FusedStep) -> None:
        """Events delivered from now on meet ``step`` as it runs, until it is completed."""
        self._state.fused_step = step

    def complete_fused(
        self, step: FusedStep, ends: Mapping[int, str], accepted: Mapping[int, int] = NOTHING_ACCEPTED
    ) -> FusedEffects:
        """Every sampling grant and every decoder emitted a token, the last one for requests in ``ends``, with why.

        ``accepted`` says how many drafts came before that token, of requests that had some accepted.
        """
        return commit_fused(self._state, self.policy, step, ends, accepted)

    def complete_repeat(self) -> None:
        """As `complete_fused` for a step that ``may_repeat`` and in which nobody ended. O(1) without a prefix cache."""
        state, cohort = self._state, self._state.cohort
        if state.fused_step is not None:
            state.memory.lift(state.fused_step.id)
            state.fused_step = None
            state.released.clear()
        if self._publishes_late:
            state.memory.publish_cohort(cohort)
        cohort.tick += 1
        cohort.context_tokens += cohort.count

    def finish(self, world: World, at_ns: Ns) -> None:
        """Members of the cohort that have emitted their last token by now end; where it `goes_on_alone`."""
        assert self.undisturbed is not None
        self.undisturbed.finish(world.ends.take(self.cohort.tick), world, at_ns)

    def repeat(self) -> bool:
        """Plan the same step again, if the pool has room; only after one that ``may_repeat``, with no event since."""
        state, memory = self._state, self._state.memory
        need = state.cohort.growth()
        if self._keeps_room and state.stopped:
            return False  # their KV may have to make room, or may come back
        if need > memory.free or (self._keeps_evicted and need > memory.clean):
            return False  # what is evicted is copied to the host, which takes time
        if self._clean_low and memory.cached and memory.clean - need < self._clean_low:
            return False  # something will be evicted ahead of need
        if need or self._publishes_early:
            memory.grow_cohort(state.cohort, need, publish=self._publishes_early)
        state.next_step += 1
        return True

    def expand(self, step: FusedStep) -> list[tuple[int, int, int, int, str, bool, int]]:
        """The step's grants one by one, as an `Instance` would have planned them; between planning and completing.

        Rows: request, epoch, start, length, phase, samples, hit tokens, in grant order. O(running).
        """
        own = {
            g.request: (g.request, g.epoch, g.start, g.length, g.phase.value, g.samples, g.hit_tokens)
            for g in step.grants
        }
        if not step.decoders:
            return list(own.values())
        rows = []
        for request in self._state.running.values():
            grant = own.get(request.id)
            if grant is not None:
                rows.append(grant)
            elif request.joined != APART and step.decoders:
                start = self._state.cohort.known(request) - 1
                rows.append((request.id, request.epoch, start, 1, Phase.DECODE.value, True, 0))
        return rows

    @property
    def live(self) -> Mapping[int, LiveRequest]:
        """Live requests by id; to be read only."""
        return self._state.requests


def _memory_for(policy: PolicySet) -> Memory | None:
    """The cheapest pool that counts as the policy's own would; None: that one."""
    blocks, size, rules = policy.limits.kv_blocks, policy.limits.block_size, policy.cache
    if rules.copies or rules.clean_low or policy.share_samples:
        return None
    if not policy.prefix_cache:
        return CountedMemory(blocks=blocks, block_size=size)
    if rules.index == "hash" and rules.eviction == "lru" and policy.publish is not Publish.AT_CHUNK:
        return ExtentMemory(blocks=blocks, block_size=size)
    return None
