"""Builds one step: serve, preempt, admit, in the order that the policy's shape says."""

from scheduler_core.kv.prefix import CopiedHits, Hits, SharedHits, TieredHits
from scheduler_core.request.lifecycle import State
from scheduler_core.request.live import APART, LiveRequest
from scheduler_core.sched.admission import arrange, first_length, note_deferral, start
from scheduler_core.sched.decisions import Deferral, Publish, Serve
from scheduler_core.sched.laws import check_step
from scheduler_core.sched.lines import lines_of
from scheduler_core.sched.policy import PolicySet, Watch
from scheduler_core.sched.quotas import QuotaBook
from scheduler_core.sched.room import cramped, relied_on, separable
from scheduler_core.sched.samples import shared_prompt, wait_for_prompt
from scheduler_core.sched.stalls import stall_cause, stalled
from scheduler_core.sched.state import InstanceState
from scheduler_core.sched.state_view import StateView
from scheduler_core.sched.stopping import Stop, pause, requeue, set_aside, stop, take_back, youngest_paused
from scheduler_core.sched.swapping import Aside
from scheduler_core.types.errors import LawError
from scheduler_core.types.plan import Grant, Phase
from scheduler_core.types.reasons import Defer, Preempt, Stall
from scheduler_core.types.records import Admitted
from scheduler_core.types.time import Ns

# Bound once: in CPython 3.11 reading a member off its enum class costs ten times a global.
_RUNNING = State.RUNNING
_ALL = Serve.ALL
_WAITING = Serve.WAITING
_PREFILLS = Serve.PREFILLS
_DECODE = Phase.DECODE
_BATCH_FULL = Defer.BATCH_FULL
_NO_BLOCKS = Defer.NO_BLOCKS
_NO_BUDGET = Defer.NO_BUDGET
_TENANT_AT_QUOTA = Defer.TENANT_QUOTA


class StepBuilder:
    """Plans one step at a time. Grants revoked inside a step return their budget exactly (V-15)."""

    def __init__(self, state: InstanceState, policy: PolicySet) -> None:
        limits = policy.limits
        self.state = state
        self.policy = policy
        # What every step asks for is looked up once.
        self._budget, self._size, self._block_size = limits.token_budget, limits.size, limits.block_size
        self._limit, self._passes = policy.chunk.limit, policy.shape.passes
        self._view = StateView(state, 0, self._budget)
        self._publishes = policy.prefix_cache and policy.publish is Publish.AT_GRANT
        self._vacates_blocks = policy.slots is not None and policy.slots.for_blocks
        self._closes = policy.slots is None and not policy.admits_without_budget
        self._by_phase, self._draft_tokens = limits.by_phase, limits.draft_tokens
        self._asked = self._drafts if limits.draft_tokens else None
        self._keeps = policy.preemption is not None and policy.preemption.keeps
        self._evicts_ahead = policy.cache.clean_low > 0
        self._shares = policy.share_samples
        self._book = None if policy.quotas is None else QuotaBook(state, policy.quotas)
        self._aside = Aside(state, policy) if policy.queues_stopped else None
        self._lines = lines_of(state.waiting)
        self.grants: dict[int, Grant] = {}
        self.decoders = 0  # members of the cohort served in this step
        self.preempted = False
        self.evicted_ahead = 0  # cached blocks given up so that there are clean ones for the next steps
        self._gave_way: set[int] = set()
        self.deferral: tuple[LiveRequest, Deferral] | None = None

    def build(self, now_ns: Ns) -> None:
        """Fill `grants` anew, changing the state as if they were under way."""
        view = self._view
        view.now_ns, view.budget_left = now_ns, self._budget
        view.decodes = view.drafted = 0
        if self.state.aged is not None:
            self.state.aged.begin(now_ns)
        for observer in self.policy.observers:
            observer.begun(now_ns)
        self._clear()
        self._round()
        while self.state.stopped and not self.grants and not self.decoders and self._revoke():
            self._round()
        if self._aside is not None and (self.grants or self.decoders):
            self._aside.look_ahead(now_ns, self._gave_way)
        if self._evicts_ahead:
            self.evicted_ahead = self.state.memory.evict_ahead() if self.grants or self.decoders else 0
        if self.state.keeps_records:
            note_deferral(self.state, self.deferral, now_ns)
        granted = self.decoders + sum([grant.length for grant in self.grants.values()])
        check_step(self.state, self.policy.limits, granted, view.budget_left)
        if self.policy.watch is not None:
            self._tell(self.policy.watch)
        for observer in self.policy.observers:
            observer.planned(view, self.grants)

    def _clear(self) -> None:
        """Forget the step before. By itself, as compiled code takes what a function has set to stay until its end."""
        self.grants = {}
        self.decoders, self.preempted, self.deferral = 0, False, None
        self._gave_way.clear()
        if self._book is not None:
            self._book.begin()

    def _round(self) -> None:
        """Serve and admit in the order that the shape says."""
        passes = self._passes(self._view)
        admits = False
        for item in passes.order:
            if item.serve is _WAITING:
                admits = True
                self._admit()
            elif not (item.yields and self.grants and cramped(self.state, self.grants, item.serve, self._asked)):
                self._serve(item.serve)
            if item.ends_step and (self.grants or self.decoders):
                break
        if not admits and passes.closed is not None:
            self._defer_head(passes.closed)

    def _tell(self, watch: Watch) -> None:
        if self.preempted:
            watch.preempted(tuple(self.state.running.values()))
        if self.grants:
            watch.stepped(decoded=any(grant.phase is _DECODE for grant in self.grants.values()))
        elif not self.state.requests:
            watch.idle()

    def check(self) -> None:
        """`LawError` when a tenant holds more blocks than it may."""
        if self._book is not None:
            self._book.check()

    def stalled(self) -> tuple[tuple[int, str], ...]:
        """Resident requests without a grant in this step, with the cause."""
        return stalled(self.state, self.grants, self.decoders, self._view.budget_left)

    def stall_cause(self) -> Stall:
        """Why a resident request that waits for nothing in flight got no grant in this step."""
        return stall_cause(self.grants, self._view.budget_left)

    # --- running requests --------------------------------------------------------------------------------------

    def _serve(self, serve: Serve) -> None:
        state, view = self.state, self._view
        if state.cohort.count and serve is not _PREFILLS:
            self._serve_cohort(serve)
        if not state.apart:
            return
        # A copy: the victim loop shortens the running order while it is walked, and must neither revisit a victim
        # nor skip the request that follows one.
        for request in tuple(state.apart.values()):
            if view.budget_left == 0:
                break
            if request.state is not _RUNNING or request.id in self.grants:
                continue
            if request.promised and not self._may_follow(request):
                continue
            if serve is _ALL or request.prefilling == (serve is _PREFILLS):
                self._serve_one(request)

    def _may_follow(self, request: LiveRequest) -> bool:
        """Whether a request may be planned on its promised token: not when that is the last its limit allows."""
        return self.state.plan_on_promises and request.known + request.promised < request.stop_at

    def _serve_one(self, request: LiveRequest) -> None:
        view = self._view
        debt = request.known + request.promised - request.granted
        length = min(debt, self._limit(request, debt, view), view.budget_left)
        if length <= 0:
            return  # a zero grant skips this request, not those behind it (V-06)
        memory = self.state.memory
        blocks: tuple[int, ...] = ()
        # Admitted for its place in a batch but without budget: its first grant is this one, and brings its hits.
        first = request.granted == request.hit_tokens
        if first:
            blocks = tuple(request.table)
        drafts = self._drafts(request, length) if self._draft_tokens else 0
        need = -(-(request.granted + length + drafts) // self._block_size) - request.blocks
        if need > 0:
            if self._book is not None and not self._keep_quota(self._book, request, need):
                return
            if not self._make_room(request, need):
                return
            blocks += memory.grow(request, need)
        self._grant(request, length, blocks, first=first, drafts=drafts)

    def _drafts(self, request: LiveRequest, length: int) -> int:
        """Draft tokens beside a grant of ``length`` tokens; none takes a token from another running request."""
        if length != request.debt:
            return 0
        others = len(self.state.running) - len(self.grants) - 1
        return request.may_draft(min(self._draft_tokens, self._view.budget_left - length - others))

    def _make_room(self, request: LiveRequest, need: int) -> bool:
        """Stop victims until ``need`` blocks are free (V-14); false if the requester was one or none is left."""
        memory = self.state.memory
        while memory.free < need:
            if self._keeps:
                self._pause(request, need)
                return False
            if self._spill(need - memory.free):
                continue
            picked = self.policy.victim.pick(request, self.state.running.values())
            if picked is None:
                return False
            victim = self.state.running[picked.id]
            self._preempt(victim, self.policy.victim.reason)
            if victim is request:
                return False
        return True

    def _keep_quota(self, book: QuotaBook, request: LiveRequest, need: int) -> bool:
        """Stop requests of its own tenant until ``need`` blocks more are within its quota; false if it was one."""
        tenant = request.spec.tenant
        while book.exceeds(request, need):
            own = {r.id: r for r in self.state.running.values() if r.spec.tenant == tenant}
            picked = self.policy.victim.pick(request, own.values())
            if picked is None:
                return False
            self._preempt(own[picked.id], Preempt.TENANT_QUOTA)
            if picked is request:
                return False
        book.grew(request, need)
        return True

    def _spill(self, short: int, *, behind: LiveRequest | None = None) -> bool:
        """Take blocks of somebody who waits with them, ``behind`` a request that waits, if that may be enough."""
        return self._aside is not None and self._aside.spill(short, behind=behind, now_ns=self._view.now_ns)

    def _preempt(self, victim: LiveRequest, reason: Preempt, *, stays: bool = False) -> None:
        revoked = self.grants.pop(victim.id, None)
        if revoked is not None:
            self._view.budget_left += revoked.length
            if self._by_phase and revoked.phase is _DECODE:
                self._view.decodes -= 1
                self._view.drafted -= revoked.drafts
        served = self.decoders > 0 and victim.joined != APART
        if served:
            self.decoders -= 1
            self._view.budget_left += 1
        self._stop(victim, Stop(reason, self._view.now_ns, revoked), served=served, stays=stays)

    def _stop(self, victim: LiveRequest, why: Stop, *, served: bool, stays: bool = False) -> None:
        self.state.leave_running(victim, granted=served)
        (set_aside if stays else stop)(self.state, self.policy, victim, why)
        self.preempted = True
        self._gave_way.add(victim.id)
        if self._book is not None:
            self._book.begin()

    def _pause(self, request: LiveRequest, need: int) -> None:
        """``request`` waits with its blocks until others give up theirs."""
        why = Stop(self.policy.victim.reason, self._view.now_ns)
        pause(self.state, request, why, (need, self.state.memory.free))
        self.preempted = True

    def _revoke(self) -> bool:
        """Nothing moves and no step in flight will change that: take what the youngest paused request keeps."""
        request = None if self.state.in_flight or self._aside is not None else youngest_paused(self.state)
        if request is None:
            return False
        requeue(self.state, self.policy, request, Stop(Preempt.REVOKED, self._view.now_ns))
        self.preempted = False  # what it gave up is for those who wait
        return True

    # --- members of the cohort ---------------------------------------------------------------------------------

    def _serve_cohort(self, serve: Serve) -> None:
        """One token for every member, as if each had been served in its place of the running order."""
        cohort, memory = self.state.cohort, self.state.memory
        need = cohort.growth()
        left, free = self._view.budget_left - cohort.count, memory.free - need
        apart = self.state.apart
        if left < 0 or (apart and not separable(self.state, self.policy.chunk, self._view, serve, (left, free))):
            self.state.disband()
            return
        if free >= 0:
            if need or self._publishes:
                memory.grow_cohort(cohort, need, publish=self._publishes)
        else:
            self._grow_members()
        self.decoders = cohort.count
        self._view.budget_left -= self.decoders

    def _grow_members(self) -> None:
        """Give members their blocks one by one, in order of admission, and stop victims as in `_make_room`."""
        state, memory = self.state, self.state.memory
        for member in state.cohort.growing():
            while member.joined != APART and memory.free < 1:
                if self._keeps:
                    self._pause(member, 1)
                    break
                if self._spill(1):
                    continue
                picked = self.policy.victim.pick(member, state.running.values())
                if picked is None:
                    raise LawError(f"request {member.id} needs a block, none is free and nobody may be stopped")
                victim = state.running[picked.id]
                # Those admitted before have been served in this step: they have their block.
                served = victim.joined != APART and victim.run_seq < member.run_seq
                self._stop(victim, Stop(self.policy.victim.reason, self._view.now_ns), served=served)
            if member.joined != APART:
                memory.grow_member(member)
        if self._publishes:
            memory.publish_cohort(state.cohort)

    # --- waiting requests --------------------------------------------------------------------------------------

    def _admit(self) -> None:
        if self.preempted and not self.policy.admits_after_preemption:
            self._defer_head(Deferral(Defer.PREEMPTED_THIS_STEP, 0, 0))
            return
        if self.state.stopped and self._aside is None and not self._return_stopped():
            return
        waiting = self.state.waiting
        if not waiting:
            return
        if self._aside is not None and (shut := self._aside.shuts_out()):
            self._admit_holders(self._aside, shut)
            return
        if self.policy.arrange is not None:
            arrange(self.state, self.policy.arrange)
        skipped = []
        while (head := waiting.head()) is not None:
            if self._closed():
                break
            deferral = self._try_admit(head)
            if deferral is None or self._frees_blocks(head, deferral):
                continue
            if self.deferral is None:
                self.deferral = (head, deferral)
            if not deferral.skip:
                break
            if deferral.reason is _TENANT_AT_QUOTA and self._lines is not None:
                self._lines.pass_over(head.spec.tenant)
            else:
                skipped.append(waiting.take())
        if self._lines is not None:
            self._lines.recall()
        while skipped:
            waiting.restore(skipped.pop())

    def _frees_blocks(self, head: LiveRequest, deferral: Deferral) -> bool:
        """Whether somebody has given up blocks for ``head``, who lacks some, so that it is worth trying again."""
        if deferral.reason is not _NO_BLOCKS:
            return False
        short = deferral.need - deferral.have
        return self._spill(short, behind=head) or (self._vacates_blocks and self._vacate(head, short))

    def _admit_holders(self, aside: Aside, shut: Deferral) -> None:
        """Let in those who have their KV, in queue order; ``shut`` is why nobody else comes in (FS-06)."""
        self._defer_head(shut)
        for request in aside.holders():
            if not (request.blocks or request.saved):
                continue  # it has lost its KV to one before it
            while (deferral := self._try_admit(request)) is not None and self._frees_blocks(request, deferral):
                pass
            if deferral is not None and not deferral.skip:
                return

    def _return_stopped(self) -> bool:
        """Let stopped requests go on, in order of their admission; false when one of them has to wait on."""
        for request in sorted(self.state.stopped.values(), key=lambda request: request.run_seq):
            deferral = self._try_return(request)
            if deferral is not None:
                self.deferral = (request, deferral)
                if not deferral.skip:
                    return False
        return True

    def _try_return(self, request: LiveRequest) -> Deferral | None:
        """As `_try_admit`, for a request that has its computed tokens in blocks of its own or in the host."""
        memory, size = self.state.memory, self._block_size
        resident = len(self.state.running) + len(self.state.held)
        if resident >= self._size and (self._aside is None or not self._vacate(request)):
            return Deferral(_BATCH_FULL, resident + 1, self._size)
        if request.promised:  # its last step is still in flight
            return Deferral(Defer.PREEMPTED_THIS_STEP, 0, 0)
        if self._book is not None and (over := self._book.defer(request, self.policy.reserve.tokens(request))):
            return over
        computed = request.granted or request.saved
        want = request.known - computed
        limits, view, left = self.policy.limits, self._view, self._view.budget_left
        length = first_length(request, want, most=self._limit(request, want, view), left=left, limits=limits)
        if length == 0:
            return Deferral(_NO_BUDGET, min(want, self._budget), left)
        reserve = -(-max(self.policy.reserve.tokens(request), request.known) // size) - request.blocks
        deferral = self.policy.admission.decide(reserve, memory.free - memory.pledged, view)
        first = -(-(computed + length) // size) - request.blocks
        if deferral is None and first > memory.free:
            deferral = Deferral(_NO_BLOCKS, first, memory.free)
        if deferral is not None:
            return deferral
        if self._book is not None:
            self._book.admitted()
        take_back(self.state, request, view.now_ns)
        first_grant = request.granted == request.hit_tokens  # its KV was brought back, and nobody knows its blocks
        blocks = tuple(request.table) if first_grant else ()
        # Who kept its blocks may have more than it needs now: those of drafts.
        blocks += memory.grow(request, max(0, -(-(computed + length) // size) - request.blocks))
        self._grant(request, length, blocks, first=first_grant)
        return None

    def _closed(self) -> bool:
        """Whether nobody can come in, whoever it is; not asked where the reason has to be told with its numbers."""
        if not self._closes or self.state.keeps_records:
            return False
        return self._view.budget_left == 0 or len(self.state.running) + len(self.state.held) >= self._size

    def _try_admit(self, head: LiveRequest) -> Deferral | None:
        memory, size = self.state.memory, self._block_size
        # Its last step before preemption is still in flight (V-03), or it was stopped for somebody in this very step.
        if head.promised or head.id in self._gave_way:
            return Deferral(Defer.PREEMPTED_THIS_STEP, 0, 0, skip=True)
        if head.id in self.state.stopped:
            return self._try_return(head)
        if self._book is not None and (over := self._book.defer(head, self.policy.reserve.tokens(head))):
            return over
        if self._shares and (wait := wait_for_prompt(self.state, head)):
            return wait
        resident = len(self.state.running) + len(self.state.held)
        if resident >= self._size and not self._vacate(head):
            return Deferral(_BATCH_FULL, resident + 1, self._size)
        # A lodged request brought its KV from another instance; its blocks are like found ones, but not all full.
        lodged = head.blocks > 0
        shared = shared_prompt(self.state, head) if self._shares else None
        hits: Hits = list(head.table) if lodged else shared or memory.match(head)
        found, loads = head.blocks or len(hits), 0
        covered = head.granted if lodged else found * size
        if isinstance(hits, CopiedHits):
            loads, covered = hits.loads, hits.tokens
        want = head.known - covered
        limits, view = self.policy.limits, self._view
        most = self._limit(head, want, view)
        length = first_length(head, want, most=most, left=view.budget_left, limits=limits)
        if length == 0 and not self.policy.admits_without_budget:
            return Deferral(_NO_BUDGET, min(want, self._budget), min(most, self._view.budget_left))
        reserve = -(-self.policy.reserve.tokens(head) // size) - found
        free = memory.free - (memory.idle(hits) if hits and not lodged else 0)
        deferral = self.policy.admission.decide(reserve, free - memory.pledged, self._view)
        if deferral is not None:
            return deferral
        # Whatever the policy estimates, the first grant needs its blocks now: some may be behind a fence.
        first = max(0, -(-(covered + length) // size) - found)
        if first > free:
            return Deferral(_NO_BLOCKS, first, free)
        self._start(head, [] if lodged else hits, reserve - loads)
        if length:
            blocks = memory.grow(head, first - loads)
            self._grant(head, length, tuple(head.table) if hits else blocks, first=True)
        return None

    def _vacate(self, head: LiveRequest, short: int = 0) -> bool:
        """Stop a running request for the sake of ``head``, if the policy has slots change hands; see `Slots.pick`."""
        if self.policy.slots is None:
            return False
        running, memory = self.state.running.values(), self.state.memory
        candidates = [request for request in running if not relied_on(memory, request, self.grants.get(request.id))]
        picked = self.policy.slots.pick(head, candidates, short) if candidates else None
        if picked is None:
            return False
        victim = self.state.running[picked.id]
        self._preempt(victim, Preempt.PRIORITY, stays=self._aside is not None and not short and victim.granted > 0)
        return True

    def _start(self, request: LiveRequest, hits: Hits, reserve: int) -> None:
        state = self.state
        if self._book is not None:
            self._book.admitted()
        start(state, request, hits, promised_blocks=reserve if self.policy.reserve.pledges else 0)
        if self.policy.account is not None:
            self.policy.account.admitted(request, state.waiting.tenants())
        if state.keeps_records:
            resumed, hit = request.preemptions > 0, request.hit_tokens
            host = hit - len(hits) * self._block_size if isinstance(hits, TieredHits) else 0
            shared = hit if isinstance(hits, SharedHits) else 0
            at = (self._view.now_ns, request.id, request.epoch)
            state.records.append(Admitted(*at, hit, resumed, state.next_step, host, shared))

    # --- both --------------------------------------------------------------------------------------------------

    def _grant(
        self, request: LiveRequest, length: int, blocks: tuple[int, ...], *, first: bool = False, drafts: int = 0
    ) -> None:
        start, phase = request.granted, request.phase()
        samples = request.grant(length) if request.answers else request.fill(length)
        request.drafted = drafts
        self._view.budget_left -= length + drafts
        if self._by_phase and phase is _DECODE:
            self._view.decodes += 1
            self._view.drafted += drafts
        hit = request.hit_tokens if first else 0
        grant = Grant(request.id, request.epoch, start, length + drafts, blocks, samples, phase, hit, drafts)
        self.grants[request.id] = grant
        if self._publishes:
            self.state.memory.publish(request, min(request.granted, request.known))

    def _defer_head(self, deferral: Deferral) -> None:
        head = self.state.waiting.head()
        if head is not None:
            self.deferral = (head, deferral)
