"""The common step, planned in one go: everybody who runs gets what is due, and newcomers take what is left.

By the rules of `scheduler_core.sched.planner` a step is mostly this: no request has to give way, none has to be passed
over, and waiting requests come in one after the other until one does not fit. Then nothing of the planner's
book-keeping per grant is needed. Where anything else may be called for, this says so before it has changed anything,
and the planner is asked. Both act on one state; that they agree is tested step by step.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields

from scheduler_core.request.live import APART, LiveRequest
from scheduler_core.sched.admission import first_length, start
from scheduler_core.sched.commit import AT_LIMIT, by_admission, finish
from scheduler_core.sched.decisions import INTERLEAVED, Publish, Retain
from scheduler_core.sched.plan import Ended, FusedStep
from scheduler_core.sched.planner import StateView
from scheduler_core.sched.policy import PolicySet
from scheduler_core.sched.state import InstanceState
from scheduler_core.types.plan import Grant, Phase
from scheduler_core.types.shape import causal_pairs
from scheduler_core.types.time import Ns

# Parts that are asked here just as the planner asks them, and settings that such a step never comes to.
_KNOWN = frozenset(
    {"name", "limits", "order", "shape", "chunk", "reserve", "admission", "victim", "requeue", "prefix_cache", "cache"}
)


def may_be_undisturbed(policy: PolicySet) -> bool:
    """Whether `Undisturbed` knows all parts of ``policy``; one it does not know must be left out."""
    plain = all(
        item.default is not MISSING and getattr(policy, item.name) == item.default
        for item in fields(policy)
        if item.name not in _KNOWN
    )
    return plain and policy.groups_decodes and policy.publish is Publish.AT_GRANT and policy.retain is Retain.REQUEST


class Undisturbed:
    """Plans and completes the undisturbed steps of an instance: `plan`, and if it was one, `complete`.

    After `plan`, ``number`` is the step's, ``served`` are (request, first position, tokens) outside the cohort in
    grant order, and ``sampled`` those of them that will emit a token. ``prefill_tokens``, ``decoders``,
    ``context_tokens``, ``prefill_pairs`` and ``joined`` are its shape (`scheduler_core.types.shape.StepShape`).
    """

    def __init__(self, state: InstanceState, policy: PolicySet) -> None:
        limits = policy.limits
        self._state, self._policy, self._memory = state, policy, state.memory
        self._budget, self._size, self._block_size = limits.token_budget, limits.size, limits.block_size
        self._limit, self._passes = policy.chunk.limit, policy.shape.passes
        self._reserve, self._pledges = policy.reserve.tokens, policy.reserve.pledges
        self._admission = policy.admission.decide
        self._publishes = policy.prefix_cache
        self._view = StateView(state, 0, self._budget)
        self.served: list[tuple[LiveRequest, int, int]] = []
        self.sampled: list[LiveRequest] = []
        self.number = self.prefill_tokens = self.decoders = 0
        self.context_tokens = self.prefill_pairs = self.joined = 0

    def plan(self, now_ns: Ns) -> bool:
        """Plan a step in which nobody is disturbed; false: nothing has changed, and the planner must be asked."""
        state, view, memory = self._state, self._view, self._memory
        cohort, waiting = state.cohort, state.waiting
        count, growth = cohort.count, cohort.growth()
        left, free = self._budget - count, memory.free - growth
        if left < 0 or free < 0:
            return False
        view.now_ns, view.budget_left = now_ns, left
        if self._passes(view) is not INTERLEAVED:
            return False
        due = self._due(free) if state.apart else ()
        if due is None:
            return False
        self.served, self.sampled = [], []
        self.prefill_tokens = self.prefill_pairs = self.joined = 0
        self.decoders, self.context_tokens = count, cohort.context_tokens
        if growth or (count and self._publishes):
            memory.grow_cohort(cohort, growth, publish=self._publishes)
        for request, length, need in due:
            if need:
                memory.grow(request, need)
            self._serve(request, length)
        if waiting:
            self._admit()
        if not count and not self.served:
            return False
        self.number = state.next_step
        state.next_step += 1
        return True

    def complete(self, ends: Mapping[int, str]) -> list[tuple[LiveRequest, Ended]]:
        """The planned step came back; see `scheduler_core.sched.commit.commit_fused`. Returns who ended."""
        state, cohort = self._state, self._state.cohort
        state.steps_done += 1
        if cohort.count:
            cohort.advance()
        for request, _, _ in self.served:
            request.confirmed = request.granted
        over: list[LiveRequest] = []
        for request in self.sampled:
            request.promised = 0
            request.known += 1
            if request.id in ends or request.known >= request.stop_at:
                over.append(request)
            else:
                del state.apart[request.id]
                cohort.join(request)
        for number in ends:
            member = state.requests[number]
            if member.joined != APART:
                over.append(member)
        if len(over) > 1:
            over.sort(key=by_admission)
        ended = [(request, finish(state, self._policy, request, ends.get(request.id, AT_LIMIT))) for request in over]
        state.released.clear()
        return ended

    def step(self) -> FusedStep:
        """The planned step as the planner would have given it, without its blocks."""
        grants = [
            Grant(
                request.id,
                request.epoch,
                begin,
                length,
                (),
                request in self.sampled,
                _phase_at(request, begin),
                request.hit_tokens if begin == request.hit_tokens else 0,
            )
            for request, begin, length in self.served
        ]
        cohort = self._state.cohort
        return FusedStep(self.number, tuple(grants), cohort.count, cohort.context_tokens, False)

    # --- running requests --------------------------------------------------------------------------------------

    def _due(self, free: int) -> list[tuple[LiveRequest, int, int]] | None:
        """(request, tokens, blocks) for each running one outside the cohort; None when one would be in another's way.

        They come after the members: who was admitted before one of them and would take budget or blocks from it is
        for the planner.
        """
        state, view, size = self._state, self._view, self._block_size
        due = []
        newest = state.cohort.newest
        for request in state.apart.values():
            left = view.budget_left
            if not left:
                break
            debt = request.known - request.granted
            length = self._limit(request, debt, view)
            if length > debt:
                length = debt
            if length > left:
                length = left
            if length <= 0:
                continue
            if request.run_seq < newest:
                return None
            end = request.granted + length
            need = -(-end // size) - request.blocks
            if need > free:
                return None
            free -= need
            view.budget_left = left - length
            due.append((request, length, need))
        return due

    def _serve(self, request: LiveRequest, length: int) -> None:
        """Note a grant whose blocks are there."""
        begin = request.granted
        end = request.granted = begin + length
        self.served.append((request, begin, length))
        if end == request.known:
            request.promised = 1
            self.sampled.append(request)
        if begin < request.lost_until or begin < request.spec.prompt_tokens:
            self.prefill_tokens += length
            self.prefill_pairs += causal_pairs(begin, length)
        else:
            self.decoders += 1
            self.context_tokens += end
        if self._publishes:
            self._memory.publish(request, end)

    # --- waiting requests --------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Let waiting requests in until budget, batch or pool stops one (V-03 to V-12)."""
        state, view, memory, size = self._state, self._view, self._memory, self._block_size
        waiting, running, limits = state.waiting, state.running, self._policy.limits
        passed = []
        while view.budget_left and len(running) < self._size and (head := waiting.head()) is not None:
            hits = memory.match(head)
            found = len(hits)
            want, left = head.known - found * size, view.budget_left
            length = first_length(head, want, most=self._limit(head, want, view), left=left, limits=limits)
            if not length:
                break
            room = max(self._reserve(head), head.known)
            reserve = -(-room // size) - found
            free = memory.free - (memory.idle(hits) if hits else 0)
            deferral = self._admission(reserve, free - memory.pledged, view)
            if deferral is not None:
                if not deferral.skip:
                    break
                passed.append(waiting.take())
                continue
            need = -(-(found * size + length) // size) - found
            if need > free:
                break
            start(state, head, hits, promised_blocks=reserve if self._pledges else 0)
            memory.grow(head, need)
            view.budget_left = left - length
            self.joined += 1
            self._serve(head, length)
        for entry in reversed(passed):
            waiting.restore(entry)


def _phase_at(request: LiveRequest, start: int) -> Phase:
    if start < request.lost_until:
        return Phase.RECOMPUTE
    return Phase.PREFILL if start < request.spec.prompt_tokens else Phase.DECODE
