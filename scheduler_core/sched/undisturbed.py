"""The common steps of a simulation in one loop: everybody who runs gets what is due, newcomers take what is left.

By the rules of `scheduler_core.sched.planner` a step is mostly this: no request has to give way, none has to be passed
over, and waiting requests come in one after the other until one does not fit. Then nothing of the planner's
book-keeping per grant is needed, and where only the cohort runs, one step is like the one before it. Where anything
else may be called for, the loop ends before it has changed anything, and the planner is asked. Both act on one state;
that they agree is tested step by step.
"""

from dataclasses import MISSING, fields

from scheduler_core.kv.prefix import Hits
from scheduler_core.request.lifecycle import State
from scheduler_core.request.live import APART, LiveRequest
from scheduler_core.sched.admission import first_length, start
from scheduler_core.sched.commit import AT_LIMIT, STOPPED
from scheduler_core.sched.decisions import INTERLEAVED, Publish, Retain
from scheduler_core.sched.plan import FusedStep
from scheduler_core.sched.policy import PolicySet
from scheduler_core.sched.state import InstanceState
from scheduler_core.sched.state_view import StateView
from scheduler_core.sched.world import World
from scheduler_core.types.plan import Grant, Phase
from scheduler_core.types.shape import causal_pairs
from scheduler_core.types.time import Ns

# Bound once: in CPython 3.11 reading a member off its enum class costs ten times a global.
_ENDED = State.ENDED

# Parts that are asked here just as the planner asks them, and settings that such a step never comes to.
_KNOWN = frozenset(
    {"name", "limits", "order", "shape", "chunk", "reserve", "admission", "victim", "requeue", "prefix_cache", "cache"}
)

_NOTHING: Hits = ()

Served = list[tuple[LiveRequest, int, int]]
"""(request, first position, tokens) of grants outside the cohort, in their order."""


def may_be_undisturbed(policy: PolicySet) -> bool:
    """Whether `Undisturbed` knows all parts of ``policy``; one it does not know must be left out."""
    plain = all(
        item.default is not MISSING and getattr(policy, item.name) == item.default
        for item in fields(policy)
        if item.name not in _KNOWN
    )
    plain = plain and policy.publish is Publish.AT_GRANT and policy.retain is Retain.REQUEST
    return plain and policy.groups_decodes and not policy.cache.copies and not policy.cache.clean_low


class Undisturbed:
    """Plays steps of an instance as long as nobody is disturbed.

    ``steps`` and ``planned`` count all steps, and those that are no repetition of the one before. ``pending`` is a step
    that something from outside may meet, with its end: it is planned, and the caller completes it.
    """

    def __init__(self, state: InstanceState, policy: PolicySet) -> None:
        self._state, self._cohort, self._memory = state, state.cohort, state.memory
        self._limits = policy.limits
        self._limit, self._passes = policy.chunk.limit, policy.shape.passes
        self._reserve, self._pledges = policy.reserve.tokens, policy.reserve.pledges
        self._admission = policy.admission.decide
        self._publishes = policy.prefix_cache
        self._by_member = self._publishes and state.memory.by_member
        self._patient = policy.patient
        self._view = StateView(state, 0, policy.limits.token_budget)
        self.steps = self.planned = 0
        self.pending: tuple[FusedStep, Ns] | None = None

    def play(self, world: World, now_ns: Ns, *, wake_ns: Ns, most_waiting: int) -> Ns:
        """Play from ``now_ns`` until the planner must be asked, the world stops it or a step is `pending`.

        Returns when that is. The first step takes ``wake_ns`` longer than it otherwise would; requests are
        delivered while fewer than ``most_waiting`` wait.
        """
        state, cohort, view = self._state, self._cohort, self._view
        requests, running, sizes = state.requests, state.running, cohort.sizes
        budget, size, block_size = self._limits.token_budget, self._limits.size, self._limits.block_size
        while now_ns < world.stop_ns:
            if world.next_ns <= now_ns and len(requests) - len(running) < most_waiting:
                world.deliver(now_ns)
            count, growth = cohort.count, sizes[cohort.tick % block_size]
            view.now_ns, view.budget_left = now_ns, budget - count
            if count > budget or growth > self._memory.free or self._passes(view) is not INTERLEAVED:
                return now_ns
            served: Served = []
            if state.apart:
                due = self._go_on(growth)
                if due is None:
                    return now_ns
                served = due
            elif growth or self._by_member:
                self._memory.grow_cohort(cohort, growth, publish=self._by_member)
            joined = len(served)
            if view.budget_left and len(requests) > len(running) < size:
                self._admit(served, world)
            joined = len(served) - joined
            if served or (count and count < len(running)):
                now_ns = self._execute(world, now_ns, wake_ns, served, joined)
            elif count:
                now_ns = self._repeat(world, now_ns, wake_ns)
            else:
                return now_ns
            if self.pending is not None:
                return now_ns
            wake_ns = 0
        return now_ns

    # --- planning ----------------------------------------------------------------------------------------------

    def _go_on(self, growth: int) -> Served | None:
        """Grant what is due to all who run; None, and nothing has changed, when one would be in another's way.

        Members of the cohort are served first, ``growth`` blocks to them. Who was admitted before one of them and
        would take budget or blocks from it is for the planner.
        """
        view, memory, cohort = self._view, self._memory, self._cohort
        free, size, by_member = memory.free - growth, memory.block_size, self._by_member
        due = []
        for request in self._state.apart.values():
            left, debt, begin = view.budget_left, request.known - request.granted, request.granted
            if not left:
                break
            length, most = debt if debt < left else left, self._limit(request, debt, view)
            if most < length:
                length = most
            if length <= 0:
                continue
            need = -(-(begin + length) // size) - request.blocks
            free -= need
            if free < 0 or request.run_seq < cohort.newest:
                return None
            view.budget_left = left - length
            due.append((request, length, need))
        if growth or by_member:
            memory.grow_cohort(cohort, growth, publish=by_member)
        return [self._grant(request, length, need) for request, length, need in due] if due else []

    def _grant(self, request: LiveRequest, length: int, need: int) -> tuple[LiveRequest, int, int]:
        begin = request.granted
        if need:
            self._memory.grow(request, need)
        request.granted = begin + length
        if self._publishes:
            self._memory.publish(request, begin + length)
        return request, begin, length

    def _admit(self, served: Served, world: World) -> None:
        """Let waiting requests in until budget, batch or pool stops one (V-03 to V-12)."""
        state, view, memory, limits = self._state, self._view, self._memory, self._limits
        waiting, running, size, caching = state.waiting, state.running, limits.block_size, self._publishes
        passed = []
        while view.budget_left and len(running) < limits.size and (head := waiting.head()) is not None:
            hits, found, free, left = _NOTHING, head.blocks, memory.free, view.budget_left
            covered = head.granted  # delivered from another instance, with its blocks
            if caching and not found and (hits := memory.match(head)):
                found = len(hits)
                covered = found * size
                free -= memory.idle(hits)
            want = head.known - covered
            length = first_length(head, want, most=self._limit(head, want, view), left=left, limits=limits)
            if not length:
                break
            need = max(0, -(-(covered + length) // size) - found)
            if need > free and self._patient:
                break  # nobody is passed over then, whatever the reason
            reserve = -(-self._reserve(head) // size) - found
            deferral = self._admission(reserve, free - memory.pledged, view)
            if deferral is not None and deferral.skip:
                passed.append(waiting.take())
                continue
            if deferral is not None or need > free:
                break
            start(state, head, hits, promised_blocks=reserve if self._pledges else 0)
            world.started(head, view.now_ns)
            view.budget_left = left - length
            served.append(self._grant(head, length, need))
        while passed:
            waiting.restore(passed.pop())

    # --- playing -----------------------------------------------------------------------------------------------

    def _execute(self, world: World, now_ns: Ns, wake_ns: Ns, served: Served, joined: int) -> Ns:
        """Play the planned step; returns its end, or ``now_ns`` when it is `pending`."""
        state, cohort = self._state, self._cohort
        decode, context, prefill, pairs = cohort.count, cohort.context_tokens, 0, 0
        sampled = []
        for request, begin, length in served:
            if begin < request.spec.prompt_tokens or begin < request.lost_until:
                prefill += length
                pairs += causal_pairs(begin, length)
            else:
                decode += 1
                context += begin + length
            if begin + length == request.known:
                sampled.append(request)
        number = state.next_step
        state.next_step = number + 1
        self.planned += 1
        end_ns = now_ns + world.times.duration_ns(prefill, decode, context, pairs, number, joined) + wake_ns
        if world.bar_ns <= end_ns:
            self.pending = self._step(number, served, sampled), end_ns
            return now_ns
        if world.observe is not None:
            world.observe(self._step(number, served, sampled), now_ns, end_ns)
        self.steps += 1
        over = []
        if cohort.count:
            cohort.tick += 1
            cohort.context_tokens += cohort.count
            if cohort.tick >= world.ends.next_tick:
                over = world.ends.take(cohort.tick)
        for request, _, _ in served:
            request.confirmed = request.granted
        for request in sampled:
            request.promised = 0
            request.known += 1
            left = world.emitted(request, end_ns)
            if left <= 0 or request.known >= request.stop_at:
                over.append((request, STOPPED if left <= 0 else AT_LIMIT))
            else:
                del state.apart[request.id]
                cohort.join(request)
                world.ends.schedule(request, left)
        if over:
            self.finish(over, world, end_ns)
        return end_ns

    def _repeat(self, world: World, now_ns: Ns, wake_ns: Ns) -> Ns:
        """The planned step is the cohort's alone: play it, and the same again until something may change it."""
        state, cohort, memory, ends = self._state, self._cohort, self._memory, world.ends
        times, sizes, block_size, by_member = world.times, cohort.sizes, memory.block_size, self._by_member
        waits = len(state.requests) > len(state.running)
        # A blocked head ignores newcomers.
        until_ns = world.stop_ns if waits and self._patient else min(world.stop_ns, world.next_ns)
        count, number = cohort.count, state.next_step
        first, slides = number, not by_member and world.observe is None
        while True:
            if slides and not wake_ns and cohort.tick + 1 < ends.next_tick:
                before, now_ns = cohort.tick, self._slide(world, now_ns, min(until_ns, world.bar_ns))
                number += cohort.tick - before
            end_ns = now_ns + times.decode_ns(count, cohort.context_tokens, number) + wake_ns
            if world.bar_ns <= end_ns:
                self.pending = FusedStep(number, (), count, cohort.context_tokens, True), end_ns
                break
            if world.observe is not None:
                world.observe(FusedStep(number, (), count, cohort.context_tokens, True), now_ns, end_ns)
            now_ns, wake_ns = end_ns, 0
            number += 1
            tick = cohort.tick = cohort.tick + 1
            cohort.context_tokens += count
            if tick >= ends.next_tick:
                self.finish(ends.take(tick), world, now_ns)
                # An end may bring the next turn.
                count, until_ns = cohort.count, min(world.stop_ns, world.next_ns)
                if waits or not count:
                    break
            growth = sizes[tick % block_size]
            if until_ns <= now_ns or growth > memory.free:
                break
            if growth or by_member:
                memory.grow_cohort(cohort, growth, publish=by_member)
        self.planned += 1
        self.steps += number - first
        state.next_step = number + (self.pending is not None)
        return now_ns

    def _slide(self, world: World, now_ns: Ns, limit_ns: Ns) -> Ns:
        """Play the planned step and plan the next one, as often as only counts change; the last is planned, not played.

        Not played is a step that ends at ``limit_ns`` or later, in which a member ends, or after which blocks run out.
        """
        cohort, sizes, block_size = self._cohort, self._cohort.sizes, self._memory.block_size
        count, context, tick, last = cohort.count, cohort.context_tokens, cohort.tick + 1, world.ends.next_tick
        line = world.times.decode_line(count)
        if line is None:
            return now_ns
        fixed, slope, base = line
        room = free = self._memory.free
        while tick < last:
            end_ns = now_ns + (round(fixed + slope * context + base) or 1)
            growth = sizes[tick % block_size]
            if end_ns >= limit_ns or growth > room:
                break
            now_ns = end_ns
            room -= growth
            context += count
            tick += 1
        cohort.tick, cohort.context_tokens = tick - 1, context
        self._memory.grow_cohort(cohort, free - room, publish=False)
        return now_ns

    def finish(self, over: list[tuple[LiveRequest, str]], world: World, at_ns: Ns) -> None:
        """Requests that have emitted their last token end, in order of admission."""
        state, cohort, publishes = self._state, self._cohort, self._publishes
        if len(over) > 1:
            over.sort(key=lambda item: item[0].run_seq)
        for request, reason in over:
            number = request.id
            if request.joined == APART:
                del state.apart[number]
            else:
                cohort.leave(request)
                if publishes:
                    self._memory.settle(request)
            del state.running[number], state.requests[number]
            request.state = _ENDED
            self._memory.release(request)
            world.finished(request, reason, at_ns)

    def _step(self, number: int, served: Served, sampled: list[LiveRequest]) -> FusedStep:
        """The planned step as the planner would have given it, without its blocks."""
        for request in sampled:
            request.promised = 1
        grants = [
            Grant(
                request.id,
                request.epoch,
                begin,
                length,
                (),
                request.promised > 0,
                _phase_at(request, begin),
                request.hit_tokens if begin == request.hit_tokens else 0,
            )
            for request, begin, length in served
        ]
        return FusedStep(number, tuple(grants), self._cohort.count, self._cohort.context_tokens, False)


def _phase_at(request: LiveRequest, start: int) -> Phase:
    if start < request.lost_until:
        return Phase.RECOMPUTE
    return Phase.PREFILL if start < request.spec.prompt_tokens else Phase.DECODE
