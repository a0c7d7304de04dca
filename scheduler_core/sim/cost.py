"""How long a step takes on the modelled target, in whole nanoseconds."""

from collections.abc import Sequence
from typing import NamedTuple

from scheduler_core.sched.world import StepTimes
from scheduler_core.sim.along import along
from scheduler_core.sim.drafts import Drafts
from scheduler_core.sim.parallel import Devices
from scheduler_core.spec.target import Affine, Profile
from scheduler_core.types.errors import CallerError
from scheduler_core.types.noise import standard_normal
from scheduler_core.types.overlap import DualBatch
from scheduler_core.types.shape import StepShape
from scheduler_core.types.spread import Spread
from scheduler_core.types.time import Ns

LEAST_FACTOR = 0.05
_LISTED = 4096


class StepParts(NamedTuple):
    """Durations of a step's parts in their order, in ns; they add up to the step's duration.

    ``swap_ns`` is for copies of KV blocks to and from the host pool, before the device's part; see `StepCost.copy_ns`.
    ``spread`` says what the devices of a parallel instance do in ``device_ns``.
    """

    prepare_ns: Ns
    copy_in_ns: Ns
    device_ns: Ns
    copy_out_ns: Ns
    finish_ns: Ns
    swap_ns: Ns = 0
    spread: Spread | None = None

    @property
    def total_ns(self) -> Ns:
        """How long the step takes where its parts come one after the other."""
        return self.prepare_ns + self.copy_in_ns + self.device_ns + self.copy_out_ns + self.finish_ns + self.swap_ns


class StepCost(StepTimes):
    """Step durations of a profile; with a noise seed, a drift of the whole run and a residual of each step.

    A step takes the time of host (`spec.target.HostTime`), copies (`spec.target.CopyTime`) and device
    (`spec.target.Affine`). Noise is multiplicative: ``exact * (1 + drift) * (1 + residual)``, both normal with the
    standard deviations that calibration measured, and depends only on the seed and the step's number.

    Where drafts are checked, each counts on the device like one request more that decodes, and its attention like that
    of a prompt; the passes of the draft model come before, each taking its share of what the target model would take
    for the decoding requests alone. ``drafts`` says which are accepted; None: nobody knows what a draft is worth.

    What a parallel instance's devices take is `sim.parallel.Devices`' to say. As long as it is affine, too, which
    ``dual_batch`` and everything but tensor parallelism ends, collectives are in the factors here.
    """

    __slots__ = (
        "_by_tokens",
        "_checked",
        "_context",
        "_copies",
        "_decode",
        "_devices",
        "_draft_ratio",
        "_drift",
        "_fixed",
        "_forward",
        "_host",
        "_joined",
        "_knots",
        "_least",
        "_link",
        "_noise_seed",
        "_odd",
        "_pair",
        "_plain",
        "_prefill",
        "_request",
        "_residual_share",
        "_wake",
        "drafts",
    )

    def __init__(
        self, profile: Profile, noise_seed: int | None = None, *, dual_batch: DualBatch = DualBatch.NEVER
    ) -> None:
        host, copies, parallel = profile.host, profile.copies, profile.parallel
        self._devices = None if parallel is None else Devices(profile, dual_batch)
        affine = parallel is None or (parallel.affine and dual_batch is DualBatch.NEVER)
        self._odd = None if affine else self._devices
        cost = _with_collectives(profile) if affine else _NOTHING
        # What every request that decodes or joins costs in host and copies, before and after the device.
        self._request = host.request_ns + host.finish_request_ns + copies.output_request_ns
        self._prefill, self._pair = cost.prefill_token_ns + copies.input_token_ns, cost.prefill_pair_ns
        self._decode = cost.decode_request_ns + copies.input_token_ns + self._request
        self._context, self._joined = cost.context_token_ns, host.joined_ns
        self._checked, self._forward = cost.decode_request_ns + copies.input_token_ns, cost
        worth = profile.speculative
        self.drafts = None if worth is None else Drafts(worth)
        self._draft_ratio = 0.0 if worth is None else worth.draft_ratio
        self._host, self._copies = host, copies
        self._wake = host.wake_knots
        self._link = profile.link
        self._knots = cost.batch_knots
        # Nearly every step has few tokens: their part is looked up, with what every step costs already in it.
        fixed = cost.base_ns + host.base_ns + host.finish_base_ns + copies.input_base_ns + copies.output_base_ns
        self._fixed = fixed
        self._by_tokens = [fixed + along(cost.batch_knots, tokens) for tokens in range(self._listed())]
        self._residual_share = profile.residual_share
        self._noise_seed = noise_seed
        self._plain = noise_seed is None and self._odd is None
        self._least = (-1, 0)  # decoding requests, and what their step takes at least: they change seldom
        self._drift = 1.0
        if noise_seed is not None:
            self._drift = 1 + profile.drift_share * standard_normal(noise_seed, "drift", 0)

    def step_ns(self, shape: StepShape, step: int) -> Ns:
        """Duration of step number ``step``, at least 1 ns: host and device time of its shape, with noise."""
        prefill, decode, context, pairs, joined, drafts, _passes = shape
        if drafts:
            return self.ranks_ns((shape,), shape, step)
        return self.duration_ns(prefill, decode, context, pairs, step, joined)

    def duration_ns(self, prefill: int, decode: int, context: int, pairs: int, step: int, joined: int = 0) -> Ns:
        """As `step_ns`, with the shape's numbers in its order."""
        exact = self._prefill * prefill + self._decode * decode + self._context * context + self._pair * pairs
        exact += self._of_tokens(prefill + decode) if self._knots else self._fixed
        if joined:
            exact += (self._request + self._joined) * joined
        if self._plain:
            return round(exact) or 1
        if self._odd is not None:
            exact += self._odd.time((StepShape(prefill, decode, context, pairs, joined),), step).total
        return self._noised(exact, step)

    @property
    def knows_replicas(self) -> bool:
        """Whether a step takes a time that depends on which replica each request is on, not on their sums alone."""
        return self._odd is not None and self._odd.replicas > 1

    def ranks_ns(self, ranks: Sequence[StepShape], shape: StepShape, step: int) -> Ns:
        """As `step_ns` of ``shape``, the requests of which are on attention replicas as ``ranks`` says."""
        if shape.drafts:
            return self._noised(self._speculative(ranks, shape, step), step)
        if self._odd is None:
            return self.step_ns(shape, step)
        host = self._decode * shape.decode_requests + self._prefill * shape.prefill_tokens + self._fixed
        host += (self._request + self._joined) * shape.joined
        return self._noised(host + self._odd.time(ranks, step).total, step)

    def _speculative(self, ranks: Sequence[StepShape], shape: StepShape, step: int) -> float:
        """A step in which drafts are checked, after the passes of the draft model; see the class."""
        exact = self._prefill * shape.prefill_tokens + self._decode * shape.decode_requests
        exact += self._checked * shape.drafts + self._context * shape.context_tokens + self._pair * shape.prefill_pairs
        exact += self._of_tokens(shape.tokens) if self._knots else self._fixed
        exact += (self._request + self._joined) * shape.joined
        alone = [StepShape(0, one.decode_requests, one.context_tokens, 0) for one in ranks if one.decode_requests]
        drafting = self._draft_ratio * shape.draft_passes
        if self._odd is None:
            return exact + drafting * _forward_ns(self._forward, shape.decode_requests, shape.context_tokens)
        return exact + drafting * self._odd.time(alone, step).total + self._odd.time(ranks, step).total

    def _noised(self, exact: float, step: int) -> Ns:
        if self._noise_seed is not None:
            residual = 1 + self._residual_share * standard_normal(self._noise_seed, "residual", step)
            exact *= max(LEAST_FACTOR, self._drift * residual)
        return round(exact) or 1

    def decode_line(self, decode: int) -> tuple[float, float, float] | None:
        """(a, b, c) such that `decode_ns` is ``round(a + b * context + c)``, at least 1; None where nothing is."""
        if not self._plain:
            return None
        fixed = self._of_tokens(decode) if self._knots else self._fixed
        return self._decode * decode, self._context, fixed

    def decode_ns(self, decode: int, context: int, step: int) -> Ns:
        """As `duration_ns` of a step in which requests only decode."""
        if self._knots or not self._plain:
            return self.duration_ns(0, decode, context, 0, step)
        return round(self._decode * decode + self._context * context + self._fixed) or 1

    def parts(self, shape: StepShape, step: int, ranks: Sequence[StepShape] = ()) -> StepParts:
        """`step_ns` in parts: host and copies without noise, the device what is left, at least 1 ns.

        ``ranks`` is what each attention replica computes; empty: one computes it all.
        """
        ranks = ranks or (shape,)
        host, copies = self._host, self._copies
        requests = shape.decode_requests + shape.joined
        tokens = shape.tokens
        prepare = round(host.base_ns + host.request_ns * requests + host.joined_ns * shape.joined)
        copy_in = round(copies.input_base_ns + copies.input_token_ns * tokens)
        copy_out = round(copies.output_base_ns + copies.output_request_ns * requests)
        finish = round(host.finish_base_ns + host.finish_request_ns * requests)
        device = max(1, self.ranks_ns(ranks, shape, step) - prepare - copy_in - copy_out - finish)
        spread = None if self._devices is None else self._devices.spread(ranks, step, device)
        return StepParts(prepare, copy_in, device, copy_out, finish, spread=spread)

    def again_ns(self, decode: int, context: int, step: int) -> Ns:
        """What the `parts` of a step add up to in which requests only decode, and none has joined."""
        if self._odd is not None:
            return self.parts(StepShape(0, decode, context, 0), step).total_ns
        if self._least[0] != decode:
            parts = self.parts(StepShape(0, decode, context, 0), step)
            self._least = decode, parts.total_ns - parts.device_ns + 1
        return max(self._least[1], self.decode_ns(decode, context, step))

    def wake_ns(self, idle_ns: Ns) -> Ns:
        """What a step takes longer because nothing ran for ``idle_ns`` before it."""
        if not idle_ns or not self._wake:
            return 0
        last, most = self._wake[-1]
        return round(most if idle_ns >= last else along(self._wake, idle_ns))

    def copy_ns(self, plan_out: int, plan_in: int, block_size: int) -> Ns:
        """What copying ``plan_out`` blocks to the host and ``plan_in`` from it adds to a step; without noise."""
        if not plan_out and not plan_in:
            return 0
        if self._link is None:
            raise CallerError("a step copies blocks to or from the host, and the profile does not say what that takes")
        return self._link.copy_ns(plan_out, block_size) + self._link.copy_ns(plan_in, block_size)

    def _listed(self) -> int:
        return min(_LISTED, self._knots[-1][0] + 1) if self._knots else 1

    def _of_tokens(self, tokens: int) -> float:
        """What every step costs, with the part that depends on all its tokens."""
        if tokens < len(self._by_tokens):
            return self._by_tokens[tokens]
        return self._fixed + along(self._knots, tokens)


_NOTHING = Affine(base_ns=0, prefill_token_ns=0, decode_request_ns=0, context_token_ns=0)


def _forward_ns(cost: Affine, decode: int, context: int) -> float:
    """The device's time for a step in which requests only decode."""
    return (
        cost.base_ns
        + along(cost.batch_knots, decode)
        + cost.decode_request_ns * decode
        + (cost.context_token_ns * context)
    )


def _with_collectives(profile: Profile) -> Affine:
    """The profile's device time with what its collectives add, where that is affine."""
    cost, parallel = profile.cost, profile.parallel
    if parallel is None:
        return cost
    more = {
        "base_ns": cost.base_ns + parallel.collective_ns,
        "prefill_token_ns": cost.prefill_token_ns + parallel.collective_token_ns,
        "decode_request_ns": cost.decode_request_ns + parallel.collective_token_ns,
    }
    return cost.model_copy(update=more)
