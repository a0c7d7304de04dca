"""Several instances as one: the facade through which a driver uses them."""

from collections.abc import Collection, Sequence

from scheduler_core.cluster.doors import COMPUTES, DECODES, Doors
from scheduler_core.cluster.effects import Effects
from scheduler_core.cluster.load import Load, Observer
from scheduler_core.cluster.members import Means, Member, Placement, Resident, check_load, taken
from scheduler_core.cluster.outages import BACK, DIED, NOTICED
from scheduler_core.cluster.pools import Pool
from scheduler_core.cluster.refusal import Seen
from scheduler_core.cluster.relief import Going, Relief
from scheduler_core.cluster.router import Choice, Router
from scheduler_core.cluster.rules import Fallback
from scheduler_core.request.spec import RequestSpec
from scheduler_core.sched.instance import Instance
from scheduler_core.sched.moving import Leaving
from scheduler_core.sched.plan import Completed, Ended, Planned
from scheduler_core.types.cluster_records import Lost, Routed
from scheduler_core.types.errors import CallerError, LawError
from scheduler_core.types.intervals import DEVICE_KINDS, Lane
from scheduler_core.types.plan import StepPlan
from scheduler_core.types.reasons import Outcome, Reject
from scheduler_core.types.records import Record
from scheduler_core.types.time import NEVER, Ns

_ROUTING_ONLY = Means()


class Cluster:
    """Sans-IO: routes requests to instances, hands them over, and keeps what routers may know.

    Instances are planned by the driver. ``doors`` says what each of them works for, and when.
    """

    def __init__(
        self,
        members: Sequence[Member],
        router: Router,
        *,
        doors: Doors,
        means: Means = _ROUTING_ONLY,
        look_every_ns: Ns = 0,
    ) -> None:
        if not members:
            raise CallerError("a cluster needs an instance")
        self.members = tuple(members)
        self.router = router
        self._links, self._handoffs, self._migrations = means.links, means.handoffs, means.migrations
        self._refusal, self._isolation, self._takes_over = means.refusal, means.isolation, means.takes_over
        self._fallen: list[int] = []
        self._loads = tuple(member.load for member in members)
        self._observer = Observer(self._loads, look_every_ns)
        self._everybody = tuple(range(len(members)))
        self._borrowing, self._relief, self._fetches = means.borrowing, means.relief, means.fetches
        self._doors, self._pools = doors, doors.pools
        changing = means.borrowing is not None or doors.rebalances
        handing = self._everybody if changing else self._pools.of(Pool.PREFILL)
        self._hands_over = frozenset(handing) if self._handoffs is not None else frozenset()
        self._open_doors()
        self._live: dict[int, Resident] = {}
        self._pending = Effects()
        self._lost: list[Record] = []
        self._now: Ns = 0

    # --- events ------------------------------------------------------------------------------------------------

    def submit(self, spec: RequestSpec, now_ns: Ns) -> Placement:
        """Route a request and submit it.

        Raises:
            CallerError: a live request has that id, in whatever instance.
        """
        if spec.id in self._live:
            raise CallerError(f"request {spec.id} is live already")
        loads = self._observer.look(now_ns)
        placed = self._place(spec, now_ns)
        if placed is None:
            nobody = Ended(spec.id, Outcome.FAILED, "route", "no_instance", 0)
            return Placement(Choice(self._pools.of(*COMPUTES)[0]), nobody)
        choice, decoder = placed
        instance, displaced = self.members[choice.instance].instance, None
        refused = None
        if self._refusal is not None:
            refused = self._refusal.of(spec, choice.instance, self._seen(spec.tier, loads))
        if refused is None:
            refused = instance.submit(spec, now_ns)
        if refused is None:
            loan = None if self._fetches is None else self._fetches.loan(spec, choice.instance)
            self.router.sent(spec, choice.instance)
            resident = self._live[spec.id] = Resident(spec, choice.instance)
            self._count(resident, 1)
            self._arrived(spec, choice.instance, decoder, now_ns)
            worst = instance.displaced()
            if worst is not None:
                displaced = self.abort(worst, outcome=Outcome.REJECTED, reason=Reject.QUEUE_FULL.value)
            if self._fetches is not None and loan is not None and spec.id in self._live:
                self._fetches.start(spec, choice.instance, loan, now_ns)
        elif self._borrowing is not None:
            self._borrowing.release(spec.id)
        return Placement(choice, refused, displaced)

    def _place(self, spec: RequestSpec, now_ns: Ns) -> tuple[Choice, int | None] | None:
        """Where a request goes, and where it will decode if that is chosen now; None with nobody to take it."""
        loads = self._observer.look(now_ns)
        if self._borrowing is not None:
            up = self._doors.lendable()
            if self._isolation is not None:
                up = self._isolation.among(spec.tier, up, loads)
            pair = self._borrowing.place(spec, up, loads, now_ns) if up else None
            self._open_doors()
            return pair
        entries = self._entries
        if self._isolation is not None:
            entries = self._isolation.among(spec.tier, entries, loads)
        return (self.router.pick(spec, entries, loads), None) if entries else None

    def _seen(self, tier: str, loads: Sequence[Load]) -> Seen:
        """What a request of ``tier`` may be let in by, as of now."""
        decoders = self._doors.decoders if self._hands_over else ()
        if self._isolation is None:
            return Seen(loads, self._entries, decoders)
        among = self._isolation.among
        return Seen(loads, among(tier, self._entries, loads), among(tier, decoders, loads))

    def _arrived(self, spec: RequestSpec, member: int, decoder: int | None, now_ns: Ns) -> None:
        """A request came to ``member``, to be handed over once its prompt is computed unless it decodes there."""
        if self._isolation is not None:
            self._isolation.went(spec.id, spec.tier, member, now_ns)
        if self._handoffs is not None and decoder != member:
            self._handoffs.arrived(spec, member, now_ns, destination=decoder)

    def deal(self, spec: RequestSpec, now_ns: Ns) -> Placement:
        """As `submit`, where nothing depends on what becomes of requests: nobody tells of their ends, none is counted.

        Only for a router that asks no loads, without refusal, handoffs, outages or displacement.
        """
        choice = self.router.pick(spec, self._entries, self._loads)
        return Placement(choice, self.members[choice.instance].instance.submit(spec, now_ns))

    def reset_cache(self, at_ns: Ns, *, force: bool = False) -> None:
        """Forget what the prefix caches of all instances hold, each when no step of it is in flight."""
        for member in self.members:
            member.instance.reset_cache(at_ns, force=force)

    def launched(self, member: int, plan: StepPlan, lanes: Sequence[Lane]) -> None:
        """A member began a step that will take ``lanes``: KV may leave before it ends, layer by layer."""
        if self._handoffs is None or member not in self._hands_over or not self._handoffs.by_layer:
            return
        held = [lane for lane in lanes if lane.kind in DEVICE_KINDS]
        if not held:
            return
        start, end = min(lane.start_ns for lane in held), max(lane.end_ns for lane in held)
        for grant in plan.grants:
            self._handoffs.launched(grant.request, grant.start + grant.length, start, end)

    def completed(self, member: int, planned: Planned, completed: Completed, now_ns: Ns) -> Completed:
        """A step of a member was completed: count what it emitted and ended, and take up whose prompt is computed.

        Returns what of it callers are told now.
        """
        load = self._loads[member]
        load.busy_ns += now_ns - planned.planned_ns
        first: list[int] = []
        for _number, request in completed.emitted:
            resident = self._live[request]
            if not resident.emitted:
                first.append(request)
            load.emits(resident.spec.prompt_tokens, resident.emitted)
            resident.emitted += 1
        for ended in completed.ended:
            self._leave(ended.request, now_ns)
        if self._handoffs is None or member not in self._hands_over:
            return completed
        for grant in planned.plan.grants:
            live = self._live.get(grant.request)
            if live is not None and self._handoffs.computed(live.spec, grant.start + grant.length, now_ns):
                first.append(grant.request)
        ready = [request for request in first if self._handoffs.awaits(request)]
        withheld = {request for request in ready if not self._handoffs.ready(request, now_ns)}
        told = tuple(item for item in completed.emitted if item[1] not in withheld)
        return Completed(told, completed.ended)

    def heard(self, member: int, first: Sequence[int], ended: Sequence[int], now_ns: Ns) -> None:
        """As `completed`, where only who emitted a first token and who ended is known of a step.

        Loads then count requests alone; handoffs chunk by chunk or layer by layer need more to be known.
        """
        for request in first:
            resident = self._live[request]
            self._loads[resident.member].emits(resident.spec.prompt_tokens, resident.emitted)
            resident.emitted = 1
        for request in ended:
            self._leave(request, now_ns)
        if self._handoffs is not None and member in self._hands_over:
            for request in first:
                if self._handoffs.awaits(request):
                    self._handoffs.ready(request, now_ns)

    @property
    def wants_room(self) -> bool:
        """Whether a handoff waits for room to decode."""
        return self._handoffs is not None and self._handoffs.wants_room

    @property
    def decoders(self) -> tuple[int, ...]:
        """Members that take in what is handed over, or all."""
        return self._pools.of(*DECODES)

    @property
    def hands_over(self) -> frozenset[int]:
        """Members that hand requests over once their prompt is computed."""
        return self._hands_over

    def settled(self, now_ns: Ns) -> bool:
        """Whether `settle` has nothing to do, as far as handoffs go; where anything else is at work, nobody knows."""
        others = self._migrations or self._relief or self._borrowing or self._fetches
        if others is not None or self._handoffs is None or self._links is None or not self._doors.still:
            return False
        return now_ns < self._links.next_ns() and self._handoffs.idle(now_ns)

    def settle(self, now_ns: Ns) -> Effects:
        """Let requests on their way go on; whoever moved is counted where it is now. To be called at every event."""
        effects, self._pending = self._pending, Effects()
        if self._links is None:
            return effects
        landed = self._links.landed(now_ns)
        if self._fetches is not None:
            self._fetches.settle(landed, now_ns, effects)
        if self._relief is not None:
            for going in self._relief.landed(landed):
                self._reassign(self._relief, going, now_ns, effects)
        if self._handoffs is not None:
            self._handoffs.settle(now_ns, landed, effects)
        if self._migrations is not None:
            self._migrations.settle(now_ns, landed, effects)
        for request, member in effects.moved:
            resident = self._live[request]
            self._count(resident, -1)
            resident.member = member
            self._count(resident, 1)
            if self._borrowing is not None:
                self._borrowing.commit(resident.spec, member)
            if self._isolation is not None:
                self._isolation.went(request, resident.spec.tier, member, now_ns)
        for _member, ended in effects.ended:
            self._leave(ended.request, now_ns)
        if self._borrowing is not None and self._borrowing.settle(self._idle, now_ns):
            self._open_doors()
        return effects

    def _idle(self, member: int) -> bool:
        """Whether nobody is at a member, nor has a place there."""
        return not self._loads[member].open and not self.members[member].instance.open_requests()

    def advance(self, now_ns: Ns) -> None:
        """It is ``now_ns``: instances were started and drained by then, and what `abort` gives up is given up then."""
        self._now = now_ns
        if not self._doors.still:
            happened = self._doors.advance(now_ns)
            self._open_doors()
            for member, what in happened:
                self._outage(member, what, now_ns)
        if self._migrations is not None and self._live:
            self._migrations.look(now_ns, self._doors.decoders, self._doors.holding(), self._may_migrate)
        if self._relief is not None and self._live:
            self._relief.look(now_ns, self._entries, self._observer.look(now_ns), self._may_leave)

    def abort(self, request: int, *, outcome: Outcome = Outcome.CANCELLED, reason: str = "cancelled") -> Ended | None:
        """End a request wherever it is; None when it is over already or never came."""
        resident = self._live.get(request)
        if resident is None:
            return None
        withheld = self._handoffs is not None and self._handoffs.withholds(request)
        self._forget(request, self._now)  # first, while its blocks are there to be held for what is under way
        ended: Ended | None = self.members[resident.member].instance.abort(request, outcome=outcome, reason=reason)
        self._leave(request, self._now)
        return ended if ended is None else ended._replace(output_tokens=ended.output_tokens - withheld)

    def take_fallen(self) -> list[int]:
        """Members that died since the last call: a step of theirs that was under way is lost."""
        fallen, self._fallen = self._fallen, []
        return fallen

    def close_arrivals(self) -> None:
        """No request will arrive any more."""
        for member in self.members:
            member.instance.close_arrivals()

    # --- outages -----------------------------------------------------------------------------------------------

    def _open_doors(self) -> None:
        """Let in as doors are now."""
        self._doors.open()
        self._entries = self._doors.entries
        if self._handoffs is not None:
            self._handoffs.let_in(self._doors.decoders)

    def _outage(self, member: int, what: str, now_ns: Ns) -> None:
        movers = [moving for moving in (self._handoffs, self._migrations, self._fetches) if moving is not None]
        if what == DIED:
            self._fallen.append(member)
            for moving in movers:
                moving.silence(member, now_ns)
        elif what == BACK:
            for moving in movers:
                moving.back(member)
        elif what == NOTICED:
            for giving_up in (self._migrations, self._fetches):
                if giving_up is not None:
                    giving_up.lost(member, now_ns, self._pending)
            if self._handoffs is not None:
                self._handoffs.lost(member, now_ns)
            self._bury(member, now_ns)

    def _bury(self, member: int, now_ns: Ns) -> None:
        """Others take over the requests of a dead member, from their first token on without any KV; or they fail."""
        instance = self.members[member].instance
        left = {r: instance.leaving(r) for r, resident in self._live.items() if resident.member == member}
        reached = {r: self._reached(r, instance) for r in left}
        withheld = {r for r in left if self._handoffs is not None and self._handoffs.withholds(r)}
        for request in left:
            self._forget(request, now_ns)
        instance.crash()
        for request, leaving in left.items():
            resident, token_lost = self._live[request], request in withheld
            self._lost.append(Lost(now_ns, request, member, leaving.computed, token_lost))
            self._count(resident, -1)
            resident.emitted -= token_lost
            anew = leaving._replace(known=leaving.known - token_lost, computed=reached[request])
            ended = self._take_over(resident, anew, now_ns)
            self._count(resident, 1)
            if ended is not None:
                self._pending.ended.append((member, ended))

    def _reached(self, request: int, instance: Instance) -> int:
        """Position up to which a request was ever computed: all of its prompt where it was handed over already."""
        handed_over = self._handoffs is not None and not self._handoffs.open(request)
        return max(instance.reached(request), self._live[request].spec.prompt_tokens if handed_over else 0)

    def _take_over(self, resident: Resident, left: Leaving, now_ns: Ns) -> Ended | None:
        """Find another member for a request of a dead one; why it ends instead, or None."""
        spec, target, decoder = resident.spec, None, None
        if self._takes_over and resident.emitted and self._handoffs is not None:
            target = self._handoffs.choose(spec.tier)
        if self._takes_over and target is None and (placed := self._place(spec, now_ns)) is not None:
            target, decoder = placed[0].instance, placed[1]
        if target is None:
            return Ended(spec.id, Outcome.FAILED, "instance", Fallback.INSTANCE_DIED.value, resident.emitted)
        ended = self.members[target].instance.resume(left, now_ns)
        if ended is not None:
            return ended._replace(output_tokens=resident.emitted)
        resident.member = target
        self._lost.append(Routed(now_ns, spec.id, target))
        self._pending.resumed.append((spec.id, resident.emitted))
        self._pending.touched.add(target)
        self._arrived(spec, target, target if resident.emitted else decoder, now_ns)
        if resident.emitted and self._borrowing is not None:
            self._borrowing.commit(spec, target)
        return None

    def _reach(self, request: int, members: Collection[int]) -> Collection[int]:
        """Those of ``members`` that a live request may go to."""
        if self._isolation is None:
            return members
        return self._isolation.among(self._live[request].spec.tier, sorted(members), self._loads)

    def _may_leave(self, request: int, members: Collection[int]) -> Collection[int]:
        """As `_reach`, and nobody once any of it was computed: a mixed instance has such ones waiting, too."""
        resident = self._live[request]
        computed = resident.emitted or self.members[resident.member].instance.reached(request)
        return () if computed else self._reach(request, members)

    def _may_migrate(self, request: int, members: Collection[int]) -> Collection[int]:
        """As `_reach`, and nobody while it is still to be handed over: a mixed instance has such ones, too."""
        if self._handoffs is not None and self._handoffs.open(request):
            return ()
        return self._reach(request, members)

    def _reassign(self, relief: Relief, going: Going, now_ns: Ns, effects: Effects) -> None:
        """A request that waited elsewhere has come to where it was sent; it goes back if nobody takes it in there."""
        resident, source = self._live[going.request], self.members[going.source].instance
        effects.touched.update((going.source, going.destination))
        decoder = None if self._borrowing is None else self._borrowing.decoder(going.request)
        taken, left = going.destination in self._entries, source.leaving(going.request)
        if taken and self._handoffs is not None:  # it may have its place to decode where it comes to now
            self._handoffs.forget(going.request, now_ns)
        if not taken or self.members[going.destination].instance.resume(left, now_ns) is not None:
            source.release(going.request)
            relief.tell(going, "returns", now_ns)
            if taken and self._handoffs is not None and decoder != going.source:
                self._handoffs.arrived(resident.spec, going.source, now_ns, destination=decoder)
            return
        source.depart(going.request)
        self._count(resident, -1)
        resident.member = going.destination
        self._count(resident, 1)
        self.router.sent(resident.spec, going.destination)
        relief.tell(going, "arrives", now_ns)
        self._arrived(resident.spec, going.destination, decoder, now_ns)

    # --- questions ---------------------------------------------------------------------------------------------

    def next_ns(self) -> Ns:
        """When `advance` or `settle` has something to do by time alone; `NEVER` when they have not."""
        at_ns = NEVER if self._links is None else self._links.next_ns()
        if self._handoffs is not None:
            at_ns = min(at_ns, self._handoffs.next_ns())
        if self._live:
            for part in (self._migrations, self._relief):
                if part is not None:
                    at_ns = min(at_ns, part.next_ns())
            if not self._doors.still:
                at_ns = min(at_ns, self._doors.next_ns())
        return at_ns

    def keep_no_records(self) -> None:
        """Nobody takes records of handoffs; those that are made anyhow go at every `settle`."""
        if self._handoffs is not None:
            self._handoffs.keeps_records = False

    @property
    def decided(self) -> dict[tuple[str, str], int]:
        """How often handoffs were decided, by action and reason."""
        counts = {} if self._handoffs is None else self._handoffs.decided
        return {(str(action), str(reason)): count for (action, reason), count in counts.items()}

    def take_records(self) -> list[Record]:
        """Records of pools, handoffs and scaling since the last call, in order."""
        records = self._doors.take_records()
        records += taken(self._migrations, self._fetches)  # given up before their requests are lost
        records += self._lost
        self._lost = []
        return records + taken(self._isolation, self._relief, self._handoffs)

    def serves(self, member: int) -> bool:
        """Whether a member is not dead."""
        return self._doors.serves(member)

    def started(self, request: int) -> bool:
        """Whether a request was ever admitted where it is; true when it is not live (any more)."""
        resident = self._live.get(request)
        return resident is None or self.members[resident.member].instance.started(request)

    def member_of(self, request: int) -> int | None:
        """Index of the member that a live request is in."""
        resident = self._live.get(request)
        return None if resident is None else resident.member

    def open_requests(self) -> list[int]:
        """Ids of live requests in order of submission."""
        return list(self._live)

    def check_member(self, number: int) -> None:
        """As `check`, of one instance and who is there."""
        member = self.members[number]
        member.instance.check()
        here = {request for request, resident in self._live.items() if resident.member == number}
        coming: set[int] = set()
        for moving in (self._handoffs, self._migrations, self._fetches):
            coming |= set() if moving is None else moving.reserved_at(number)
        if here | coming != set(member.instance.open_requests()) or here & coming:
            raise LawError(
                f"{member.name}: holds {member.instance.open_requests()}, routed there are {here}, coming {coming}"
            )
        check_load(member, [self._live[request] for request in here])

    def check(self) -> None:
        """Each live request is in exactly one instance, loads add up, and each instance keeps its own laws.

        A request on its way holds blocks at two: it is at its source, and has a reservation where it goes.

        Raises:
            LawError: with the terms that do not agree.
        """
        for number in range(len(self.members)):
            self.check_member(number)
        if self._handoffs is not None:
            self._handoffs.check()

    def _leave(self, request: int, now_ns: Ns) -> None:
        self._count(self._live.pop(request), -1)
        self._forget(request, now_ns)
        if self._borrowing is not None:
            self._borrowing.release(request)

    def _forget(self, request: int, now_ns: Ns) -> None:
        if self._handoffs is not None:
            self._handoffs.forget(request, now_ns)
        if self._migrations is not None:
            self._migrations.forget(request, now_ns, self._pending)
        for waiting in (self._relief, self._fetches):
            if waiting is not None:
                waiting.forget(request, now_ns)

    def _count(self, resident: Resident, sign: int) -> None:
        load = self._loads[resident.member]
        load.count(resident.spec.prompt_tokens, resident.emitted, sign)
        if resident.spec.priority < 0:
            load.urgent += sign
