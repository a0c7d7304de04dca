"""The narrow questions a policy answers, and the bundle of answers that makes a policy.

Rules for implementers: no clock, no randomness, no state unless the part says so; totally ordered answers with the
arrival sequence last; O(log n) per request and step; each part names the rule ids it implements.
"""

from collections.abc import Collection, Iterable, Mapping, Reversible, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from scheduler_core.kv.rules import CacheRules, Quotas, SwapRules
from scheduler_core.sched.decisions import Deferral, Passes, Place, Publish, Remedy, Retain
from scheduler_core.sched.gate import Gate
from scheduler_core.sched.view import Beginnings, RequestView, View
from scheduler_core.types.patience import Promise
from scheduler_core.types.plan import Grant
from scheduler_core.types.reasons import Outcome, Preempt
from scheduler_core.types.time import Ns

DEFAULT_PREFILL_TOKEN_NS = 100_000.0
"""Where nothing is known of the target: 0.1 ms a token."""


class Order(Protocol):
    """In which order are waiting requests considered?"""

    @property
    def first_come(self) -> bool:
        """Whether a newcomer can never pass one who waits, so that arrivals do not matter to a blocked queue."""

    def key(self, request: RequestView) -> tuple[int, ...]:
        """Smaller is earlier; equal keys go by arrival sequence. Must not change while the request waits."""


class Arrange(Protocol):
    """In which order are waiting requests considered, where that changes with the cache or with every step?"""

    def arrange(self, waiting: Sequence[RequestView], cache: Beginnings) -> Sequence[RequestView]:
        """The same requests in the order for this step. Asked before each step in which somebody may come in."""


class Shape(Protocol):
    """Which classes of requests are served in which order, and may they share a step?"""

    def passes(self, view: View) -> Passes:
        """The rounds of the step about to be planned."""

    def wake_ns(self, view: View) -> Ns | None:
        """When the answer may change by time alone; None: only by events."""


class Chunk(Protocol):
    """How many tokens may one grant have at most?"""

    def limit(self, request: RequestView, want: int, view: View) -> int:
        """Upper bound of a grant to a request that has ``want`` tokens to compute; 0 passes it over in this step."""


class Reserve(Protocol):
    """How much memory must be in sight to admit?"""

    @property
    def pledges(self) -> bool:
        """Whether the room is kept for the request afterwards, so that it never has to be preempted."""

    def tokens(self, request: RequestView) -> int:
        """Positions for which there must be room."""


class Admission(Protocol):
    """May this waiting request come in now?"""

    def decide(self, reserve_blocks: int, room_blocks: int, view: View) -> Deferral | None:
        """None admits.

        ``reserve_blocks`` is the room that must be in sight beyond cache hits; ``room_blocks`` are free, not pledged,
        and would stay free after adopting the hits (V-10).
        """


class Slots(Protocol):
    """Who gives way when a request waits for a batch slot?"""

    @property
    def for_blocks(self) -> bool:
        """Whether somebody gives way for want of blocks too."""

    @property
    def reads_progress(self) -> bool:
        """Whether the choice depends on how far requests have come; they then cannot advance as a group."""

    def pick(self, head: RequestView, running: Iterable[RequestView], short: int) -> RequestView | None:
        """A running request to be stopped for ``head``, or None.

        ``short`` is what it lacks of memory, in the unit of the policy's `Admission`; 0 where it lacks a slot.
        """


class Account(Protocol):
    """Book-keeping of a policy: told what happens, asked which tenant comes next. Its state is its own."""

    def arrived(self, request: RequestView, queued: Collection[str]) -> None:
        """``request`` came; ``queued`` are the tenants that had requests waiting before."""

    def admitted(self, request: RequestView, queued: Collection[str]) -> None:
        """``request`` starts; ``queued`` are the tenants that still have requests waiting."""

    def emitted(self, request: RequestView) -> None:
        """``request`` emitted one token; asked for each one of a step that gave it several."""

    def rank(self, tenant: str) -> tuple[int, ...]:
        """Smaller is served first."""


class Watch(Protocol):
    """A part that learns from what happened; told by the planner, never asked."""

    def stepped(self, *, decoded: bool) -> None:
        """A step was planned; ``decoded``: running requests emit a token in it."""

    def preempted(self, survivors: Iterable[RequestView]) -> None:
        """Requests were stopped for want of memory in the step being planned; these go on."""

    def idle(self) -> None:
        """Nothing runs and nothing waits."""


class Observer(Protocol):
    """A part that keeps figures of its own about what happens; told, never asked."""

    def begun(self, now_ns: Ns) -> None:
        """A step is about to be planned."""

    def planned(self, view: View, grants: Mapping[int, Grant]) -> None:
        """A step was planned at ``view.now_ns``: ``grants`` by request, empty when there was nothing to do."""

    def ended(self, request: RequestView, outcome: Outcome) -> None:
        """``request`` is over."""


class Predictor(Protocol):
    """How long will the answer be?"""

    def expected(self, request: RequestView) -> int:
        """Expected length of the whole answer, above what was emitted and within the declared limit."""

    def finished(self, request: RequestView) -> None:
        """``request`` emitted its last token: something to learn from."""


class Victim(Protocol):
    """Whom to stop when ``requester`` cannot get a block?"""

    @property
    def reason(self) -> Preempt:
        """Why its victims are stopped."""

    @property
    def reads_progress(self) -> bool:
        """Whether the choice depends on how far requests have come; they then cannot advance as a group."""

    def pick(self, requester: RequestView, running: Reversible[RequestView]) -> RequestView | None:
        """One of ``running`` (in order of admission), possibly the requester; None if nobody may be stopped."""


class Preemption(Protocol):
    """What becomes of the KV of a request that has to stop for want of blocks?"""

    @property
    def keeps(self) -> bool:
        """Whether a request that finds no block waits with those it has, instead of taking another's.

        What paused requests keep is revoked, youngest first, when nothing moves otherwise.
        """

    @property
    def copies(self) -> bool:
        """Whether KV may go to the host and come back."""

    def weigh(self, tokens: int, blocks: int) -> Remedy:
        """How to get ``tokens`` computed tokens in ``blocks`` blocks back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Plain numbers of a policy. ``token_budget`` is per step, all phases; ``queue_limit`` 0 means none.

    ``by_phase``: the chunk rule goes by what a step has of each phase, so that decodes are served one by one.

    ``draft_tokens`` are proposed for a request that decodes, and checked in its step; 0: decoding is not speculative.

    ``promises`` are those of tiers, by name. ``prefill_token_ns`` is what a prompt token is estimated to take.
    """

    size: int
    token_budget: int
    block_size: int
    kv_blocks: int
    model_length: int
    chunked: bool = True
    queue_limit: int = 0
    by_phase: bool = False
    draft_tokens: int = 0
    promises: Mapping[str, Promise] = field(default_factory=dict)
    prefill_token_ns: float = DEFAULT_PREFILL_TOKEN_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySet:
    """A complete policy for one instance.

    Who has waited ``starvation_ns`` comes before everybody, whatever the order; None: no such bound. Without
    ``preemption``, who has to stop is always computed again; without ``swapping`` no KV moves before it must. With
    ``displaces`` a full queue gives up its request of the worst priority to a newcomer of a strictly better one (G-15);
    else it refuses the newcomer. With ``share_samples`` samples of one prompt share its blocks.
    """

    name: str
    limits: Limits
    order: Order
    shape: Shape
    chunk: Chunk
    reserve: Reserve
    admission: Admission
    victim: Victim
    requeue: Place
    publish: Publish = Publish.AT_GRANT
    retain: Retain = Retain.REQUEST
    prefix_cache: bool = False
    cache: CacheRules = field(default_factory=CacheRules)
    preemption: Preemption | None = None
    swapping: SwapRules | None = None
    arrange: Arrange | None = None
    slots: Slots | None = None
    account: Account | None = None
    watch: Watch | None = None
    starvation_ns: Ns | None = None
    predictor: Predictor | None = None
    observers: tuple[Observer, ...] = ()
    gate: Gate | None = None
    quotas: Quotas | None = None
    displaces: bool = False
    admits_without_budget: bool = False
    admits_after_preemption: bool = False
    share_samples: bool = False

    @property
    def patient(self) -> bool:
        """Whether newcomers do not matter while the head of the queue cannot come in, whoever they are."""
        alike = self.gate is None and self.quotas is None and not self.limits.queue_limit and not self.share_samples
        return alike and self.order.first_come

    @property
    def queues_stopped(self) -> bool:
        """Whether who is stopped and keeps its KV waits in the queue by its key, so that it blocks nobody before it.

        Else stopped requests go on before anybody new comes in.
        """
        return self.requeue is Place.BY_KEY and self.preemption is not None and self.preemption.copies

    @property
    def groups_decodes(self) -> bool:
        """Whether running requests may advance together: not where a part has to hear of, or look at, each one."""
        if self.limits.by_phase or self.limits.draft_tokens or self.quotas is not None:
            return False
        told = self.account is not None or self.watch is not None or bool(self.observers)
        looks = self.victim.reads_progress or (self.slots is not None and self.slots.reads_progress)
        return not told and not looks
