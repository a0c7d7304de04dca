"""The fast simulator of clusters: instances play their own steps, and the fleet only what lies between them.

Exact: the cluster is the same object that the step-by-step driver uses, and so are its routers and handoffs; what they
ask an instance is asked as of that moment. An instance nobody asks is left behind and catches up later, from event to
event. Whoever must hear of first tokens and ends keeps a heap of the earliest moments at which each instance may have
one. What a router alone reads is looked up when a request comes, and what is handed over waits for an end only where it
found no room; where nobody asks anything, as with requests dealt out in turn, instances never meet.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from scheduler_core.cluster.build import Seats, Site, build_cluster
from scheduler_core.cluster.load import Load
from scheduler_core.cluster.router import asks_loads, asks_prompts
from scheduler_core.drive.cuts import CANCEL, Due, Outside, cut, cuts_of
from scheduler_core.policies.presets import Capacity, build_policy, overlap_of
from scheduler_core.policies.resolving import resolve
from scheduler_core.request.spec import RequestSpec
from scheduler_core.sched.instance import Instance
from scheduler_core.sim.arrivals import ArrivalStream
from scheduler_core.sim.cost import StepCost
from scheduler_core.sim.lane import Clock, Lane, LaneLoad, Shared
from scheduler_core.sim.rows import RequestRow, Track
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.cluster_records import Routed
from scheduler_core.types.errors import CallerError, LawError
from scheduler_core.types.overlap import Overlap
from scheduler_core.types.records import Record
from scheduler_core.types.time import NEVER, Ns

NOTHING = Outside()

FleetSink = Callable[[RequestRow, int], None]
"""Receives the rows of each instance in order of ends there, with the instance's index."""


class FleetReport(NamedTuple):
    """Totals of a simulated cluster; ``handoffs`` counts what was decided, by (action, reason)."""

    steps: int
    requests: int
    end_ns: Ns
    preemptions: int
    handoffs: Mapping[tuple[str, str], int]


class Fleet:
    """Plays requests through a modelled cluster.

    ``costs`` are those of the instances, by index. ``outside`` is what reaches it beside the requests. ``observe`` is
    told where each request was routed and what handoffs did.
    """

    def __init__(
        self,
        spec: PolicySpec,
        site: Site,
        costs: Sequence[StepCost],
        sink: FleetSink,
        *,
        prefix_block_size: int = 16,
        outside: Outside = NOTHING,
        observe: Callable[[Record], None] | None = None,
    ) -> None:
        reason = why_step_by_step(spec) or ("the cache is reset" if tuple(outside.resets) else "")
        if site.events is not None and site.events.outages:
            reason = reason or "instances die or are drained (events.outages)"
        if reason:
            raise CallerError(f"this cluster is to be played step by step: {reason}")
        self._clock = Clock(whole=False)
        self._tracks: dict[int, Track] = {}
        self._lanes: list[Lane] = []
        self._cluster = build_cluster(spec, site, self._seats(costs, Shared(self._clock, self._tracks, sink)))
        self._outside = outside
        self._cuts = [Due(at_ns, CANCEL, request) for request, at_ns in outside.cancels]
        heapq.heapify(self._cuts)
        self._prefix_block_size = prefix_block_size
        self._observe = observe
        if observe is None:
            self._cluster.keep_no_records()
        self._arrivals = ArrivalStream(())
        self._heap: list[tuple[Ns, int]] = []
        self._bounds = [NEVER] * len(self._lanes)
        self._listens = self._looks = self._closed = self._ends_matter = False
        self._decoders: frozenset[int] = frozenset()

    def run(self, requests: Iterable[PlannedRequest]) -> FleetReport:
        """Play all ``requests`` to their end; a stream of them may hold no cancels."""
        arrivals = self._arrivals = ArrivalStream(requests)
        cluster, clock = self._cluster, self._clock
        clock.whole = not self._may_be_met(requests)
        self._listens = bool(cluster.hands_over) or not (arrivals.independent and clock.whole)
        self._looks = asks_loads(cluster.router) and not self._listens
        self._ends_matter = not (cluster.hands_over and arrivals.independent) or self._may_be_cut(requests)
        self._decoders = frozenset(cluster.decoders) if cluster.hands_over else frozenset()
        for lane in self._lanes:
            lane.world.tells_ends = self._listens or self._looks
            lane.world.tells_first = bool(cluster.hands_over) or (
                lane.world.tells_ends and asks_prompts(cluster.router)
            )
        while (at_ns := self._next_ns()) != NEVER:
            self._instant(at_ns)
        for lane in self._lanes:
            lane.due_ns = lane.player.play()
        if self._tracks:
            raise LawError(f"{len(self._tracks)} requests are open, but nothing is due any more")
        reports = [lane.player.report() for lane in self._lanes]
        return FleetReport(
            sum(report.steps for report in reports),
            sum(report.requests for report in reports),
            max(report.end_ns for report in reports),
            sum(report.preemptions for report in reports),
            cluster.decided,
        )

    def check(self) -> None:
        """The laws of every instance; `LawError` with every term."""
        for lane in self._lanes:
            lane.check()

    def _seats(self, costs: Sequence[StepCost], shared: Shared) -> Seats:
        def seat(spec: PolicySpec, capacity: Capacity) -> tuple[Instance, Load]:
            index = len(self._lanes)
            lane = Lane(build_policy(spec, capacity), costs[index], index, shared)
            self._lanes.append(lane)
            return lane, LaneLoad(lane) if spec.pools.layout == "split" else Load()

        return seat

    def _may_be_met(self, requests: Iterable[PlannedRequest]) -> bool:
        """Whether something from outside may have to meet a step while it runs."""
        policy = self._lanes[0].policy
        timed = policy.account is not None or policy.gate is not None
        return bool(self._cluster.hands_over) or timed or self._may_be_cut(requests)

    def _may_be_cut(self, requests: Iterable[PlannedRequest]) -> bool:
        """Whether a client or a time limit may end a request."""
        cancels = isinstance(requests, Sequence) and any(request.cancel_ns is not None for request in requests)
        return bool(self._cuts or self._outside.patience or cancels)

    # --- one instant -------------------------------------------------------------------------------------------

    def _next_ns(self) -> Ns:
        at_ns = self._arrivals.next_ns
        if self._cuts and self._tracks:
            at_ns = min(at_ns, self._cuts[0].at_ns)
        if self._listens and self._heap:
            at_ns = min(at_ns, self._heap[0][0])
        return min(at_ns, self._cluster.next_ns()) if self._cluster.hands_over else at_ns

    def _instant(self, now_ns: Ns) -> None:
        """All that happens at ``now_ns``, in the order of `scheduler_core.drive.cluster.ClusterDriver`."""
        clock, cluster = self._clock, self._cluster
        clock.at(now_ns)
        cluster.advance(now_ns)
        if self._looks:
            self._hear(now_ns - 1)  # a request comes before steps that end as it comes
        self._deliver(now_ns)
        if self._looks:
            for index in clock.asked:
                self._note(index)
        if not self._listens:
            return
        clock.steps_end()
        self._hear(now_ns)
        if cluster.hands_over and not cluster.settled(now_ns):
            self._settle(now_ns)
        self._deliver(now_ns)  # an end may let another turn begin
        clock.plans()
        left_behind = frozenset[int]() if self._ends_matter else self._decoders  # nobody need know of their next step
        if cluster.wants_room:
            clock.asked |= self._decoders
            left_behind = frozenset()
        for index in sorted(clock.asked) if len(clock.asked) > 1 else tuple(clock.asked):
            if not clock.whole and index not in left_behind:
                self._lanes[index].catch_up()
            self._note(index)

    def _deliver(self, now_ns: Ns) -> None:
        arrivals, cuts = self._arrivals, self._cuts
        while True:
            cut_ns = cuts[0].at_ns if cuts else NEVER
            if arrivals.next_ns <= now_ns and arrivals.next_ns <= cut_ns:
                self._arrive(now_ns)
            elif cut_ns <= now_ns:
                due = heapq.heappop(cuts)
                ended = cut(self._cluster, due)
                if ended is not None:
                    arrivals.ended(due.request, now_ns)
            else:
                break
        if arrivals.over and not self._closed:
            self._closed = True
            for lane in self._lanes:
                lane.close()

    def _arrive(self, now_ns: Ns) -> None:
        at_ns, planned = self._arrivals.take()
        foresight = self._outside.foresight
        spec = RequestSpec.from_planned(
            planned,
            arrival_ns=at_ns,
            prefix_block_size=self._prefix_block_size,
            foreseen=None if foresight is None else foresight.of(planned),
        )
        self._tracks[planned.index] = Track(at_ns, planned.output_tokens)
        meets = self._listens or self._looks
        placed = self._cluster.submit(spec, now_ns) if meets else self._cluster.deal(spec, now_ns)
        choice = placed.choice
        if self._observe is not None:
            self._observe(Routed(now_ns, spec.id, choice.instance, choice.score, choice.next_best))
        if placed.refused is not None:
            self._lanes[choice.instance].world.refused(placed.refused, now_ns, planned.prompt_tokens)
            self._arrivals.ended(planned.index, now_ns)
        elif planned.cancel_ns is not None or self._outside.patience:
            if self._clock.whole:
                raise CallerError(f"request {planned.index} of a stream cancels: give all requests at once")
            for due in cuts_of(planned, at_ns, self._outside.patience):
                heapq.heappush(self._cuts, due)

    def _settle(self, now_ns: Ns) -> None:
        effects = self._cluster.settle(now_ns)
        for _, index in effects.moved:
            self._lanes[index].uncounted = 0
        if self._observe is not None:
            for record in self._cluster.take_records():
                self._observe(record)
        for _, ended in effects.ended:
            self._arrivals.ended(ended.request, now_ns)

    # --- what instances do by themselves -----------------------------------------------------------------------

    def _hear(self, now_ns: Ns) -> None:
        """First tokens and ends up to ``now_ns``."""
        heap, lanes, due = self._heap, self._lanes, []
        while heap and heap[0][0] <= now_ns:
            at_ns, index = heapq.heappop(heap)
            if at_ns == self._bounds[index]:
                self._bounds[index] = NEVER
                due.append(index)
        for index in sorted(due):
            lanes[index].catch_up()
            self._tell(index, now_ns)

    def _tell(self, index: int, now_ns: Ns) -> None:
        """Tell the cluster what an instance has had to say by ``now_ns``."""
        first, over = self._lanes[index].world.take_news(now_ns)
        if first or over:
            self._cluster.heard(index, first, over, now_ns)
            for request in over:
                self._arrivals.ended(request, now_ns)

    def _note(self, index: int) -> None:
        """Note the earliest moment at which an instance may have news that matter.

        A handoff that waits for room is decided anew whenever a step of a decoder ends: which one is chosen may differ.
        """
        lane = self._lanes[index]
        if index not in self._decoders:
            at_ns = lane.news_ns()
        elif self._cluster.wants_room:
            at_ns = lane.due_ns
        elif self._ends_matter:
            at_ns = lane.news_ns()
        else:
            self._tell(index, self._clock.now_ns)
            at_ns = NEVER
        if at_ns != self._bounds[index]:
            self._bounds[index] = at_ns
            if at_ns != NEVER:
                heapq.heappush(self._heap, (at_ns, index))


_ANY = frozenset(
    {
        "layout",
        "prefill",
        "handoff",
        "handoff_budget_ms",
        "patience_ms",
        "broken",
        "look_every_ms",
        "on_death",  # of no account where nobody dies
        "notice_ms",
    }
)
_SOME: Mapping[str, tuple[object, ...]] = {
    "route": ("round_robin", "least_loaded", "two_choices", "sticky", "prefix", "first_token"),
    "prefix_weight": (1.0,),
    "reserve": ("ready", "arrival"),
    "move": ("after",),
    "first_token": ("prefill",),
    "accept_share": (1.0,),
    "headroom_tokens": (0,),
    "refuse": ("never",),
}
"""What of a policy's section ``pools`` a fleet plays: settings with any value, and others with these."""


def why_step_by_step(spec: PolicySpec) -> str:
    """What of a policy a fleet cannot play; empty if it can."""
    full = resolve(spec)
    if overlap_of(full) is not Overlap.NONE:
        return f"steps overlap (execution.overlap: {full.execution.overlap})"
    if full.pools.layout == "split" and full.order.by in ("longest_prefix", "prefix_tree"):
        return f"what is delivered stands in a line ordered by what is cached (order.by: {full.order.by})"
    if full.batch.queue_limit and full.order.preempt_threshold is not None and full.order.by == "priority":
        return f"a full queue gives up its worst request (batch.queue_limit: {full.batch.queue_limit})"
    for name, value in full.pools:
        if value is not None and name not in _ANY and value not in _SOME.get(name, ()):
            return f"pools.{name}: {value}"
    return ""
