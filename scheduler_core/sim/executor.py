"""Executes plans on a simulated clock."""

from collections import deque

from scheduler_core.sim.cost import StepCost, StepParts
from scheduler_core.sim.drafts import Drafts
from scheduler_core.sim.lanes import Lanes, Placed
from scheduler_core.sim.ranks import Ranks
from scheduler_core.spec.target import Profile
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.errors import ExecutorError
from scheduler_core.types.overlap import DualBatch, Overlap
from scheduler_core.types.plan import Grant, GrantResult, StepPlan, StepResult
from scheduler_core.types.shape import StepShape, shape_of
from scheduler_core.types.time import Ns

_NOTHING = GrantResult(None)
_TOKEN = GrantResult(None)
_LAST = GrantResult(None, last=True)


class TrueOutputs:
    """How long each answer really is and how far it has come, which executors alone may know.

    The executors of a cluster share one: an answer goes on in another instance where it was left.
    """

    __slots__ = ("_emitted", "_lengths", "_seeds")

    def __init__(self) -> None:
        self._lengths: dict[int, int] = {}
        self._emitted: dict[int, int] = {}
        self._seeds: dict[int, int] = {}

    def open(self, request: PlannedRequest) -> None:
        """Make a request known."""
        self._lengths[request.index] = request.output_tokens
        self._emitted[request.index] = 0
        self._seeds[request.index] = request.draw_seed

    def close(self, request: int) -> None:
        """Forget it."""
        for known in (self._lengths, self._emitted, self._seeds):
            known.pop(request, None)

    def resume(self, request: int, emitted: int) -> None:
        """A request goes on after ``emitted`` tokens."""
        self._emitted[request] = emitted

    def length(self, request: int) -> int:
        """Tokens of its whole answer."""
        return self._lengths[request]

    def answer(self, grant: Grant, drafts: Drafts | None = None) -> GrantResult:
        """What a grant yields; tokens that it samples count as emitted. ``drafts`` says which of its drafts are."""
        if not grant.samples:
            return _NOTHING
        request, accepted = grant.request, 0
        emitted, length = self._emitted[request], self._lengths[request]
        if grant.drafts:
            if drafts is None:
                raise ExecutorError(f"request {request} has drafts, and nobody says what a draft is worth")
            accepted = drafts.accepted(self._seeds[request], emitted, grant.drafts, length - emitted)
        self._emitted[request] = emitted = emitted + 1 + accepted
        if accepted:
            return GrantResult(None, emitted >= length, accepted=accepted)
        return _LAST if emitted >= length else _TOKEN


class SimulatedExecutor:
    """Jumps its clock to the next completion. It alone knows how long each answer really is.

    Its tokens have no ids. ``noise_seed`` None makes durations exact. ``overlap`` says what may run beside what; with
    more than one step in flight, results come back in launch order; ``dual_batch`` says when the devices of a parallel
    instance take a step in halves. KV blocks hold ``block_size`` tokens; a
    step's copies between device and host come before its compute, which may use what they free and fill.
    """

    def __init__(
        self,
        *,
        profile: Profile,
        noise_seed: int | None = None,
        outputs: TrueOutputs | None = None,
        overlap: Overlap = Overlap.NONE,
        dual_batch: DualBatch = DualBatch.NEVER,
        block_size: int = 16,
    ) -> None:
        self._block_size = block_size
        self._cost = StepCost(profile, noise_seed, dual_batch=dual_batch)
        self._drafts = self._cost.drafts
        replicas = 1 if profile.parallel is None else profile.parallel.data
        self._ranks = Ranks(replicas) if replicas > 1 else None
        self._lanes = Lanes(overlap)
        self._depth = overlap.steps_in_flight
        self._now: Ns = 0
        self._busy_until: Ns = 0
        self._launched: deque[tuple[Ns, StepResult]] = deque()
        self._outputs = outputs or TrueOutputs()

    def now_ns(self) -> Ns:
        return self._now

    def open(self, request: PlannedRequest) -> None:
        self._outputs.open(request)

    def launch(self, plan: StepPlan) -> None:
        if len(self._launched) >= self._depth:
            raise ExecutorError(f"step {plan.id} launched while step {self._launched[0][1].plan_id} runs")
        ranks = () if self._ranks is None else self._ranks.shapes(plan)
        parts = self._cost.parts(shape_of(plan), plan.id, ranks)
        placed = self._place(parts, (len(plan.copies_out), len(plan.copies_in)))
        answers = tuple([self._outputs.answer(grant, self._drafts) for grant in plan.grants])
        result = StepResult(plan.id, answers, placed.lanes, self._now, placed.available_ns, spread=parts.spread)
        self._launched.append((placed.known_ns, result))

    def place(self, shape: StepShape, step: int, copied: tuple[int, int] = (0, 0)) -> Placed:
        """When step number ``step``, started now, does what; ``copied`` blocks go to the host, and come from there."""
        return self._place(self._cost.parts(shape, step), copied)

    def _place(self, parts: StepParts, copied: tuple[int, int]) -> Placed:
        wake = self._cost.wake_ns(max(0, self._now - self._busy_until))
        if wake:
            parts = parts._replace(device_ns=parts.device_ns + wake)
        if copied != (0, 0):
            parts = parts._replace(swap_ns=self._cost.copy_ns(*copied, self._block_size))
        placed = self._lanes.place(self._now, parts)
        self._busy_until = placed.known_ns
        return placed

    def again_ns(self, decode: int, context: int, step: int) -> Ns:
        """How long step number ``step``, in which requests only decode, takes, started right after one before it."""
        self._busy_until = self._now + (took := self._cost.again_ns(decode, context, step))
        return took

    def length(self, request: int) -> int:
        """How long the answer of a request really is."""
        return self._outputs.length(request)

    def wait(self, until_ns: Ns | None) -> StepResult | None:
        if self._launched and (until_ns is None or self._launched[0][0] <= until_ns):
            known, result = self._launched.popleft()
            self._now = max(self._now, known)
            return result
        if until_ns is None:
            raise ExecutorError("asked to wait for a step, but none was launched")
        self._now = max(self._now, until_ns)
        return None

    def resume(self, request: int, emitted: int) -> None:
        self._outputs.resume(request, emitted)

    def close(self, request: int) -> None:
        self._outputs.close(request)
        if self._ranks is not None:
            self._ranks.leave(request)
