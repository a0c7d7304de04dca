"""One serving instance: the facade through which everybody drives the core."""

from dataclasses import replace

from scheduler_core.request.lifecycle import Event, State
from scheduler_core.request.live import LiveRequest
from scheduler_core.request.spec import RequestSpec
from scheduler_core.sched import moving
from scheduler_core.sched.admission import worst_waiting
from scheduler_core.sched.aging import HeldQueue, Timed
from scheduler_core.sched.cohort import Cohort
from scheduler_core.sched.commit import commit, end, release_batch
from scheduler_core.sched.decisions import Place
from scheduler_core.sched.gate import Gate, GateAnswer, gated_record
from scheduler_core.sched.laws import check_conservation, check_liveness, check_residence
from scheduler_core.sched.lines import queue_of
from scheduler_core.sched.memory import BlockMemory, blocks_for
from scheduler_core.sched.moving import Leaving, Reserved
from scheduler_core.sched.plan import Completed, Ended, Occupancy, Planned
from scheduler_core.sched.planner import StepBuilder
from scheduler_core.sched.policy import PolicySet
from scheduler_core.sched.resetting import ask_reset, due_reset
from scheduler_core.sched.state import InstanceState, Reset
from scheduler_core.sched.state_view import StateView
from scheduler_core.sched.stopping import Stop, requeue
from scheduler_core.types.errors import CallerError
from scheduler_core.types.plan import StepPlan, StepResult
from scheduler_core.types.reasons import Disposal, Outcome, Preempt, Reject
from scheduler_core.types.records import Record
from scheduler_core.types.time import Ns


class Instance:
    """Sans-IO: events with times go in, step plans and records come out; it never reads a clock.

    Up to ``depth`` steps may be in flight (1: plan, complete, plan; 2: plan ahead while one runs). With
    ``plan_on_promises`` a request whose next token is still in flight may be granted that token's step already, which
    needs an executor that feeds tokens back on its device; otherwise it waits for the answer.
    """

    def __init__(
        self, policy: PolicySet, *, depth: int = 1, plan_on_promises: bool = False, first_block: int = 0
    ) -> None:
        self.policy = policy
        self._depth, self._first_block = depth, first_block
        self._state = self._fresh(plan_on_promises)
        self._builder = StepBuilder(self._state, policy)

    def _fresh(self, plan_on_promises: bool) -> InstanceState:  # noqa: FBT001
        policy, limits = self.policy, self.policy.limits
        memory = BlockMemory(
            blocks=limits.kv_blocks,
            block_size=limits.block_size,
            rules=policy.cache if policy.prefix_cache else replace(policy.cache, index="none"),
            first_block=self._first_block,
        )
        waiting = queue_of(policy)
        return InstanceState(
            memory,
            Cohort(limits.block_size),
            waiting=waiting,
            aged=waiting if isinstance(waiting, Timed) else None,
            plan_on_promises=plan_on_promises,
            queues_stopped=policy.queues_stopped,
        )

    # --- events ------------------------------------------------------------------------------------------------

    def submit(self, spec: RequestSpec, now_ns: Ns) -> Ended | None:
        """Take in a request; returns why it was refused, or None. What can never be served is refused here.

        Raises:
            CallerError: a live request has that id.
        """
        state = self._state
        spec.check()
        if spec.id in state.requests:
            raise CallerError(f"request {spec.id} is live already")
        refusal = self._refuse(spec)
        if refusal is not None:
            reason, need, have = refusal
            return Ended(spec.id, Outcome.REJECTED, "submit", reason.value, 0, need, have)
        return self._let_in(spec, now_ns)

    def _let_in(self, spec: RequestSpec, now_ns: Ns) -> Ended | None:
        """Take in a request that can be served, if the gate lets it."""
        state, until_ns = self._state, now_ns
        if self.policy.gate is not None:
            answer = self._ask_gate(self.policy.gate, spec, now_ns)
            if answer.disposal is Disposal.REJECT:
                return Ended(spec.id, Outcome.REJECTED, "submit", answer.trigger, 0, answer.need, answer.have)
            spec, until_ns = answer.spec, answer.until_ns
        request = LiveRequest(spec, seq=state.next_seq, model_length=self.policy.limits.model_length)
        state.next_seq += 1
        state.requests[spec.id] = request
        if self.policy.account is not None:
            self._tell_account(request)
        key = self.policy.order.key(request)
        if until_ns > now_ns and isinstance(state.waiting, HeldQueue):
            state.waiting.hold(request, key, until_ns)
        else:
            state.waiting.push(request, key)
        return None

    def close_arrivals(self) -> None:
        """No request will arrive any more, so nothing is worth waiting for."""
        self._state.arrivals_over = True

    def change_policy(self, policy: PolicySet) -> None:
        """Decide by ``policy`` from the next plan on; requests and blocks stay where they are. O(waiting log waiting).

        The queue keeps its order if the policy has the same parts for it, else it is ordered anew; a new account is
        told of everybody who is there.

        Raises:
            CallerError: the pool would have to be another one.
        """
        state, old = self._state, self.policy
        if _pool_of(policy) != _pool_of(old):
            raise CallerError("a policy that needs another pool cannot take over a running instance")
        if _queueing_of(policy) != _queueing_of(old):
            self._queue_anew(policy)
        if policy.account is not None and policy.account is not old.account:
            for request in state.requests.values():
                policy.account.arrived(request, state.waiting.tenants())
        self.policy = policy
        self._builder = StepBuilder(state, policy)

    def plan(self, now_ns: Ns) -> Planned | None:
        """The next step to launch, or None when there is nothing to do now; see `next_wakeup`.

        Raises:
            CallerError: as many steps are in flight as the instance may have.
            LawError: unfinished requests exist and nothing will ever move them.
        """
        state = self._state
        if len(state.in_flight) >= self._depth:
            raise CallerError(f"{len(state.in_flight)} steps are in flight already")
        if state.reset is not None and due_reset(state, self.policy, now_ns):
            return None
        builder = self._builder
        self._build(now_ns)
        if not builder.grants:
            check_liveness(state, self.next_wakeup(now_ns))
            return None
        moves = state.memory.take_moves()
        plan = StepPlan(state.next_step, tuple(builder.grants.values()), tuple(state.released), *moves)
        state.next_step += 1
        state.released.clear()
        counts = self.occupancy(), self.policy.limits.token_budget, builder.evicted_ahead
        planned = Planned(plan, now_ns, builder.stalled(), *counts)
        state.in_flight.append(planned)
        return planned

    def _build(self, now_ns: Ns) -> None:
        """Plan a step; where nobody runs, so that nothing would change, what was delivered gives way."""
        state, builder = self._state, self._builder
        builder.build(now_ns)
        if builder.preempted and not builder.grants and not state.running:
            builder.build(now_ns)  # who came last has given way to itself, and the next in line may come in
        while not builder.grants and builder.deferral is not None and not state.running and state.lodged:
            if not moving.revoke_lodged(state, but=builder.deferral[0], now_ns=now_ns):
                break
            builder.build(now_ns)

    def complete(self, result: StepResult) -> Completed:
        """Apply the answer to the oldest step in flight.

        Raises:
            ExecutorError: the answer fits no step in flight or is impossible; nothing has changed.
        """
        return commit(self._state, self.policy, result)

    def abort(self, request: int, *, outcome: Outcome = Outcome.CANCELLED, reason: str = "cancelled") -> Ended | None:
        """End a request in any state (V-29); None when it is not live any more. A step of it in flight is ignored."""
        live = self._state.requests.get(request)
        if live is None:
            return None
        state = self._state
        ended = end(
            state,
            self.policy,
            live,
            Event.ABORT,
            outcome=outcome,
            reason=reason,
            granted=state.fused_step is not None and state.fused_step.decoders > 0,
        )
        release_batch(state)
        return ended

    def preempt(self, request: int, *, now_ns: Ns) -> None:
        """Take a running request's blocks by order of an operator; it waits and comes back by recomputation.

        Raises:
            CallerError: the request is not running.
        """
        live = self._live(request)
        if live.state is not State.RUNNING:
            raise CallerError(f"request {request} is {live.state.name}, not RUNNING")
        if self._state.aged is not None:
            self._state.aged.begin(now_ns)
        self._state.leave_running(live)
        requeue(self._state, self.policy, live, Stop(Preempt.OPERATOR, now_ns))
        release_batch(self._state)

    def displaced(self) -> int | None:
        """Who has to leave the queue, to be aborted as rejected, because a better newcomer came into it (G-15)."""
        limit = self.policy.limits.queue_limit
        if not self.policy.displaces or not limit or self._state.queued <= limit:
            return None
        worst = worst_waiting(self._state)
        return None if worst is None else worst.id

    def reset_cache(self, at_ns: Ns, *, force: bool = False) -> None:
        """Forget what the prefix cache holds, before the next planning at which no step is in flight (V-26).

        It succeeds only when no block is in use then; with ``force`` everybody who runs is preempted first. The record
        `CacheReset` says what came of it.
        """
        ask_reset(self._state, Reset(at_ns, force))

    # --- between instances -------------------------------------------------------------------------------------

    def withhold(self, request: int) -> None:
        """Compute no more than the prompt of a request here: its first token is another instance's to compute (V-31).

        Once its prompt is computed it must be parked; it answers again after `land` or `stay`.
        """
        self._live(request).answers = False

    def hold(self, request: int) -> None:
        """Take a request that waits out of the queue until `release`: there is no place for its prompt's KV yet."""
        moving.hold(self._state, self._live(request))

    def release(self, request: int) -> None:
        """A request that was held may be computed."""
        moving.release(self._state, self.policy, self._live(request))

    def park(self, request: int) -> None:
        """Take a running request out of the steps; it keeps its blocks until `depart` or `stay`."""
        moving.park(self._state, self._live(request))
        release_batch(self._state)

    def stay(self, request: int) -> None:
        """A parked request goes on here after all, as soon as it has a slot."""
        live = self._live(request)
        moving.lodge(self._state, self.policy, live, live.confirmed)

    def depart(self, request: int) -> None:
        """A parked request is elsewhere now: its blocks are free."""
        moving.depart(self._state, self._live(request))

    def pin(self, request: int, fence: int) -> int:
        """Keep the blocks that a request has now until `unpin`, whatever becomes of it; how many. O(blocks).

        ``fence`` is below 0 and used once: transfers may read or write them still.
        """
        self._state.pinned.add(fence)
        return self._state.memory.pin(self._live(request), fence)

    def unpin(self, fence: int) -> None:
        """Nothing touches what stands behind ``fence`` any more; one that is not known is ignored."""
        self._state.pinned.discard(fence)
        self._state.memory.lift(fence)

    def reserve(self, left: Leaving, now_ns: Ns, *, headroom_tokens: int = 0) -> Reserved | Ended | None:
        """Room for the KV of a request that comes from another instance; None when there is none now.

        It must fit in what is free, less what prefills here still need to complete (V-32), and leave
        ``headroom_tokens`` unless nobody else is here. `Ended` when it can never be served here. The request is parked
        until `land`.
        """
        request = self._arriving(left)
        if isinstance(request, Ended):
            return request
        state = self._state
        size = state.memory.block_size
        spoken_for = sum(max(0, blocks_for(live.known, size) - live.blocks) for live in state.apart.values())
        if state.requests:
            spoken_for += blocks_for(headroom_tokens, size)
        if not moving.reserve(state, request, left.computed, spoken_for=spoken_for):
            return None
        return Reserved(request.id, request.epoch, request.hit_tokens)

    def serves_anybody(self) -> bool:
        """Whether a request runs, was stopped or has landed here: it will give blocks back by itself."""
        state = self._state
        return bool(state.running or state.stopped or state.lodged)

    def owes(self) -> bool:
        """Whether requests are here that lost their blocks, or their place in steps, and have not come back (PD-05)."""
        state = self._state
        return bool(state.stopped) or any(live.preemptions and not live.blocks for live in state.waiting)

    def landed_blocks(self) -> int:
        """Blocks of requests that were delivered and wait for a slot."""
        return sum(request.blocks for request in self._state.lodged.values())

    def land(self, request: int, tokens: int, *, known: int | None = None) -> None:
        """The KV of the first ``tokens`` positions of a reserved request is there: it waits for a slot.

        It went on elsewhere while that was copied, up to ``known`` tokens.
        """
        live = self._live(request)
        live.known = live.known if known is None else known
        self._tell_account(live)
        moving.lodge(self._state, self.policy, live, tokens)

    def keep(self, request: int, tokens: int) -> None:
        """As `land`, but only the prefix cache has it from now on, and the request is gone."""
        moving.keep(self._state, self._live(request), tokens)

    def cached(self, spec: RequestSpec) -> int:
        """How many tokens of a prompt's beginning are cached here."""
        return moving.cached(self._state, spec, self.policy.limits.model_length)

    def extend(self, request: int, tokens: int) -> bool:
        """Lease what a reserved request needs for ``tokens`` positions; false (and nothing changed) without room."""
        return moving.extend(self._state, self._live(request), tokens)

    def decodes(self, request: int) -> bool:
        """Whether a request runs and its prompt is computed."""
        live = self._state.running.get(request)
        return live is not None and not live.prefilling

    def decoding(self) -> list[tuple[int, int]]:
        """Requests that `decodes` is true of, with their tokens, in order of admission."""
        return [(live.id, live.known) for live in self._state.running.values() if not live.prefilling]

    def in_step(self, request: int) -> bool:
        """Whether a step of a live request is in flight."""
        live = self._live(request)
        return live.granted != live.confirmed

    def unstarted(self) -> list[tuple[int, int]]:
        """Requests that wait and were never admitted, with their prompt tokens, in queue order. O(waiting)."""
        waiting = [live for live in self._state.waiting if live.run_seq < 0 and not live.blocks]
        return [(live.id, live.spec.prompt_tokens) for live in waiting]

    def resume(self, left: Leaving, now_ns: Ns) -> Ended | None:
        """Take over a request without its KV: it waits like a preempted one, and its tokens are computed again."""
        request = self._arriving(left)
        if isinstance(request, Ended):
            return request
        request.lost_until, request.preemptions = left.computed, int(left.computed > 0)
        self._tell_account(request)
        self._state.requests[request.id] = request
        self._state.waiting.push(request, self.policy.order.key(request))
        return None

    def leaving(self, request: int) -> Leaving:
        """What another instance needs to know of a live request to take it over."""
        live = self._live(request)
        return Leaving(live.spec, live.known, live.confirmed, live.epoch + 1)

    def reached(self, request: int) -> int:
        """Position up to which a live request was ever computed, here or where it was before."""
        live = self._live(request)
        return max(live.confirmed, live.lost_until)

    def crash(self) -> None:
        """Everything here is gone at once: requests, their blocks, what was cached, and a step in flight."""
        old = self._state
        self._state = self._fresh(old.plan_on_promises)
        self._state.arrivals_over = old.arrivals_over
        self._state.next_seq, self._state.next_run, self._state.next_step = old.next_seq, old.next_run, old.next_step
        self._builder = StepBuilder(self._state, self.policy)

    def _arriving(self, left: Leaving) -> LiveRequest | Ended:
        refusal = self._refuse(left.spec)
        if refusal is not None:
            reason, need, have = refusal
            return Ended(left.spec.id, Outcome.REJECTED, "handoff", reason.value, 0, need, have)
        state = self._state
        request = LiveRequest(left.spec, seq=state.next_seq, model_length=self.policy.limits.model_length)
        state.next_seq += 1
        request.known, request.epoch = left.known, left.epoch
        return request

    def _tell_account(self, request: LiveRequest) -> None:
        """``request`` is about to wait here for the first time."""
        if self.policy.account is not None:
            self.policy.account.arrived(request, self._state.waiting.tenants())

    def _live(self, request: int) -> LiveRequest:
        live = self._state.requests.get(request)
        if live is None:
            raise CallerError(f"request {request} is not live")
        return live

    # --- questions ---------------------------------------------------------------------------------------------

    def next_wakeup(self, now_ns: Ns) -> Ns | None:
        """When `plan` may answer differently by time alone; None: only after an event."""
        state = self._state
        wake = self.policy.shape.wake_ns(StateView(state, now_ns, self.policy.limits.token_budget))
        due = None if state.aged is None else state.aged.wake_ns()
        return due if wake is None else wake if due is None else min(wake, due)

    def open_requests(self) -> list[int]:
        """Ids of live requests in order of submission."""
        return list(self._state.requests)

    def state_of(self, request: int) -> State:
        """Where a request is; `State.ENDED` when it is not live (any more)."""
        live = self._state.requests.get(request)
        return State.ENDED if live is None else live.state

    def started(self, request: int) -> bool:
        """Whether a request has ever been admitted; true when it is not live (any more)."""
        live = self._state.requests.get(request)
        return live is None or live.run_seq >= 0

    def occupancy(self) -> Occupancy:
        """Counts of blocks and requests now. O(1)."""
        state, memory = self._state, self._state.memory
        return Occupancy(
            memory.used,
            memory.cached,
            memory.clean,
            state.queued,
            len(state.running),
            len(state.stopped),
            memory.host_used,
        )

    def free_order(self) -> list[int]:
        """Free blocks, next to be allocated first."""
        return self._state.memory.free_order()

    def block_tables(self) -> dict[int, tuple[int, ...]]:
        """The block table of each request that holds blocks, in the order of its positions."""
        return {live.id: tuple(live.table) for live in self._state.requests.values() if live.table}

    def take_records(self) -> list[Record]:
        """Records of decisions since the last call, in order."""
        records, self._state.records = self._state.records, []
        return records

    def check(self) -> None:
        """Conservation and single residence now; `LawError` with every term. Liveness is checked by `plan`."""
        check_conservation(self._state)
        check_residence(self._state)
        self._builder.check()

    def _ask_gate(self, gate: Gate, spec: RequestSpec, now_ns: Ns) -> GateAnswer:
        state = self._state
        answer = gate.decide(spec, (state.queued, state.memory.used, state.memory.total), now_ns)
        if answer.disposal is not Disposal.QUEUE and state.keeps_records:
            state.records.append(gated_record(answer))
        return answer

    def _queue_anew(self, policy: PolicySet) -> None:
        state = self._state
        waiting, state.waiting = [one for one in state.waiting if one.id not in state.stopped], queue_of(policy)
        state.aged = state.waiting if isinstance(state.waiting, Timed) else None
        state.queues_stopped = policy.queues_stopped
        if policy.queues_stopped:
            waiting += state.stopped.values()
        fronts = [request for request in waiting if request.preemptions and policy.requeue is Place.FRONT]
        for request in waiting:
            if request not in fronts:
                state.waiting.push(request, policy.order.key(request))
        for request in reversed(fronts):
            state.waiting.push_front(request)

    def _refuse(self, spec: RequestSpec) -> tuple[Reject, int, int] | None:
        limits = self.policy.limits
        if spec.prompt_tokens >= limits.model_length:
            return Reject.OVER_MODEL_LENGTH, spec.prompt_tokens + 1, limits.model_length
        needed = blocks_for(min(spec.prompt_tokens + spec.output_limit, limits.model_length) - 1, limits.block_size)
        if needed > limits.kv_blocks:
            return Reject.NEVER_FITS_POOL, needed, limits.kv_blocks
        quota = None if self.policy.quotas is None else self.policy.quotas.of(spec.tenant)
        if quota is not None and needed > quota:
            return Reject.OVER_TENANT_QUOTA, needed, quota
        if not limits.chunked and spec.prompt_tokens > limits.token_budget:
            return Reject.OVER_STEP_BUDGET, spec.prompt_tokens, limits.token_budget
        if limits.queue_limit and (waiting := self._state.queued) >= limits.queue_limit:
            last = worst_waiting(self._state) if self.policy.displaces else None
            if last is None or last.spec.priority <= spec.priority:
                return Reject.QUEUE_FULL, waiting + 1, limits.queue_limit
        return None


def _pool_of(policy: PolicySet) -> tuple[object, ...]:
    limits = policy.limits
    return limits.kv_blocks, limits.block_size, limits.model_length, policy.prefix_cache, policy.cache, policy.publish


def _queueing_of(policy: PolicySet) -> tuple[object, ...]:
    return policy.order, policy.requeue, policy.account, policy.arrange, policy.starvation_ns, policy.queues_stopped
