"""How long the devices of a parallel instance take for a step, and what each of them does meanwhile.

A step passes all layers once; ``p`` stages hold ``1 / p`` of them each. Cut into ``m`` equal parts, it is over after
``m + p - 1`` times what a stage takes for a part: the pipeline is filled and emptied within the step, because the next
one needs its tokens (Huang et al., "GPipe", NeurIPS 2019). Of that a device works ``m`` times and waits ``p - 1``.

Cut into two halves (dual batch), the layers of one compute while the other communicates. With ``c`` of compute and
``k`` of communication a half, in ``n`` rounds, device and link alternate: ``2 max(c, k) + min(c, k) / n`` instead of
``c' + k'`` in one piece. Halves read the weights twice, so small batches gain nothing.
"""

from collections.abc import Sequence
from typing import NamedTuple

from scheduler_core.sim.along import along
from scheduler_core.sim.experts import ExpertLoads, ExpertRouter
from scheduler_core.spec.parallel import ExpertTime
from scheduler_core.spec.target import Profile
from scheduler_core.types.errors import CallerError
from scheduler_core.types.overlap import DualBatch
from scheduler_core.types.shape import StepShape
from scheduler_core.types.spread import Spread
from scheduler_core.types.time import Ns

PARTS_PER_STAGE = 4


class DeviceTime(NamedTuple):
    """What an average device does in a step, in ns; all but ``hidden`` add up to the step's time on the devices."""

    compute: float
    exposed: float
    hidden: float
    bubble: float
    rank_wait: float
    expert_wait: float

    @property
    def total(self) -> float:
        """The step's time on the devices."""
        return self.compute + self.exposed + self.bubble + self.rank_wait + self.expert_wait


class _Pass(NamedTuple):
    """A part of a step through all layers: computing of the slowest device, waits within it, and communication."""

    compute: float
    communication: float
    rank_wait: float
    expert_wait: float


class Devices:
    """Times of a profile with a section ``parallel``."""

    def __init__(self, profile: Profile, dual_batch: DualBatch = DualBatch.NEVER) -> None:
        if profile.parallel is None:
            raise CallerError(f"profile {profile.name} is one device")
        self._cost = profile.cost
        self._time = profile.parallel
        experts = profile.parallel.experts
        self._experts = None if experts is None else (experts, ExpertRouter(experts))
        self._dual = dual_batch
        self._last: tuple[tuple[Sequence[StepShape], int], ExpertLoads | None, DeviceTime] | None = None

    @property
    def replicas(self) -> int:
        """Attention replicas."""
        return self._time.data

    def time(self, ranks: Sequence[StepShape], step: int) -> DeviceTime:
        """Step number ``step``; ``ranks`` is what each attention replica computes, those without requests left out."""
        return self._played(ranks, step)[1]

    def spread(self, ranks: Sequence[StepShape], step: int, device_ns: Ns) -> Spread:
        """What an average device does in a step that takes ``device_ns`` on them, noise included."""
        loads, time = self._played(ranks, step)
        factor = device_ns / time.total if time.total else 0.0
        exposed, hidden, *waits = (int(part * factor) for part in time[1:])
        told = Spread(exposed + hidden, hidden, *waits)
        if loads is None or self._experts is None:
            return told
        return told._replace(
            experts=self._experts[0].count,
            expert_tokens=loads.chosen,
            expert_dropped=loads.dropped,
            expert_most=loads.most,
        )

    def _played(self, ranks: Sequence[StepShape], step: int) -> tuple[ExpertLoads | None, DeviceTime]:
        """Asked for twice for each step, its length and then its parts."""
        asked = ranks, step
        if self._last is None or self._last[0] != asked:
            loads = self._loads(ranks, step)
            self._last = asked, loads, self._best(ranks, loads)
        return self._last[1:]

    def _loads(self, ranks: Sequence[StepShape], step: int) -> ExpertLoads | None:
        if self._experts is None:
            return None
        return self._experts[1].loads(sum(shape.tokens for shape in ranks), step)

    def _best(self, ranks: Sequence[StepShape], loads: ExpertLoads | None) -> DeviceTime:
        tokens = sum(shape.tokens for shape in ranks)
        cuts = [self._cut(ranks, loads, parts) for parts in self._parts(tokens)]
        return min(cuts, key=lambda time: time.total)

    def _parts(self, tokens: int) -> list[int]:
        """Into how many parts a step of ``tokens`` may be cut for the pipeline."""
        stages, asked = self._time.pipeline, self._time.micro_batches
        if stages == 1:
            return [1]
        if asked is not None:
            return [max(1, min(asked, tokens))]
        return [1 << power for power in range((PARTS_PER_STAGE * stages).bit_length()) if 1 << power <= max(1, tokens)]

    def _cut(self, ranks: Sequence[StepShape], loads: ExpertLoads | None, parts: int) -> DeviceTime:
        """The step in ``parts`` equal parts, each in halves where that is asked for."""
        stages, tokens = self._time.pipeline, sum(shape.tokens for shape in ranks)
        whole = self._pass(ranks, loads, 1 / parts)
        compute, exposed, hidden = whole.compute, whole.communication, 0.0
        if self._dual is not DualBatch.NEVER and self._time.collectives and tokens >= 2 * parts:
            half = self._pass(ranks, loads, 0.5 / parts)
            long, short = max(half[:2]), min(half[:2])
            elapsed = 2 * long + short / self._time.collectives
            if self._dual is DualBatch.ALWAYS or elapsed < compute + exposed:
                whole = _Pass(*(2 * part for part in half))
                compute = whole.compute
                exposed, hidden = elapsed - compute, whole.communication - (elapsed - compute)
        handed = 0.0 if stages == 1 else self._time.stage_ns + self._time.stage_token_ns * tokens / parts
        rounds, works = (parts + stages - 1), parts / stages
        return DeviceTime(
            compute=works * (compute - whole.rank_wait - whole.expert_wait),
            exposed=works * exposed + parts * handed,
            hidden=works * hidden,
            bubble=(rounds - parts) * ((compute + exposed) / stages + handed),
            rank_wait=works * whole.rank_wait,
            expert_wait=works * whole.expert_wait,
        )

    def _pass(self, ranks: Sequence[StepShape], loads: ExpertLoads | None, share: float) -> _Pass:
        """``share`` of the step through all layers."""
        times = [self._rank(shape, share) for shape in ranks]
        times += [self._cost.base_ns] * (self._time.data - len(times))
        longest, mean = max(times), sum(times) / len(times)
        tokens = share * max((shape.tokens for shape in ranks), default=0)
        told = self._time.collective_ns + self._time.collective_token_ns * tokens
        if loads is None or self._experts is None:
            return _Pass(longest, told, longest - mean, 0.0)
        experts = self._experts[0]
        busy = [_place_ns(experts, place, share) for place in loads.places]
        most, usual = max(busy), sum(busy) / len(busy)
        told += experts.dispatch_ns + experts.dispatch_token_ns * share * max(map(sum, loads.places))
        return _Pass(longest + most, told, longest - mean, most - usual)

    def _rank(self, shape: StepShape, share: float) -> float:
        cost = self._cost
        even = cost.prefill_token_ns * shape.prefill_tokens
        even += cost.decode_request_ns * (shape.decode_requests + shape.drafts)
        even += cost.context_token_ns * shape.context_tokens + cost.prefill_pair_ns * shape.prefill_pairs
        tokens = share * shape.tokens
        return cost.base_ns + share * even + along(cost.batch_knots, tokens)


def _place_ns(experts: ExpertTime, place: Sequence[int], share: float) -> float:
    """A place of experts with these loads, for ``share`` of the step: an expert is touched if any of its choices is."""
    touched = sum(1 - (1 - share) ** load for load in place if load) if share < 1 else sum(map(bool, place))
    return max(experts.token_ns * share * sum(place), experts.touch_ns * touched)
