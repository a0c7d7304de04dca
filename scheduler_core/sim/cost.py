"""How long a step takes on the modelled target, in whole nanoseconds."""

from bisect import bisect_right
from typing import NamedTuple

from scheduler_core.spec.target import Knots, Profile
from scheduler_core.types.errors import CallerError
from scheduler_core.types.noise import standard_normal
from scheduler_core.types.shape import StepShape
from scheduler_core.types.time import Ns

LEAST_FACTOR = 0.05
_LISTED = 4096


class StepParts(NamedTuple):
    """Durations of a step's parts in their order, in ns; they add up to the step's duration.

    ``swap_ns`` is for copies of KV blocks to and from the host pool, before the device's part; see `StepCost.copy_ns`.
    """

    prepare_ns: Ns
    copy_in_ns: Ns
    device_ns: Ns
    copy_out_ns: Ns
    finish_ns: Ns
    swap_ns: Ns = 0


class StepCost:
    """Step durations of a profile; with a noise seed, a drift of the whole run and a residual of each step.

    A step takes the time of host (`spec.target.HostTime`), copies (`spec.target.CopyTime`) and device
    (`spec.target.Affine`). Noise is multiplicative: ``exact * (1 + drift) * (1 + residual)``, both normal with the
    standard deviations that calibration measured, and depends only on the seed and the step's number.
    """

    __slots__ = (
        "_by_tokens",
        "_context",
        "_copies",
        "_decode",
        "_drift",
        "_fixed",
        "_host",
        "_joined",
        "_knots",
        "_link",
        "_noise_seed",
        "_pair",
        "_prefill",
        "_request",
        "_residual_share",
        "_wake",
    )

    def __init__(self, profile: Profile, noise_seed: int | None = None) -> None:
        cost, host, copies = profile.cost, profile.host, profile.copies
        # What every request that decodes or joins costs in host and copies, before and after the device.
        self._request = host.request_ns + host.finish_request_ns + copies.output_request_ns
        self._prefill, self._pair = cost.prefill_token_ns + copies.input_token_ns, cost.prefill_pair_ns
        self._decode = cost.decode_request_ns + copies.input_token_ns + self._request
        self._context, self._joined = cost.context_token_ns, host.joined_ns
        self._host, self._copies = host, copies
        self._wake = host.wake_knots
        self._link = profile.link
        self._knots = cost.batch_knots
        # Nearly every step has few tokens: their part is looked up, with what every step costs already in it.
        fixed = cost.base_ns + host.base_ns + host.finish_base_ns + copies.input_base_ns + copies.output_base_ns
        self._fixed = fixed
        self._by_tokens = [fixed + _along(cost.batch_knots, tokens) for tokens in range(self._listed())]
        self._residual_share = profile.residual_share
        self._noise_seed = noise_seed
        self._drift = 1.0
        if noise_seed is not None:
            self._drift = 1 + profile.drift_share * standard_normal(noise_seed, "drift", 0)

    def step_ns(self, shape: StepShape, step: int) -> Ns:
        """Duration of step number ``step``, at least 1 ns: host and device time of its shape, with noise."""
        prefill, decode, context, pairs, joined = shape
        return self.duration_ns(prefill, decode, context, pairs, step, joined)

    def duration_ns(self, prefill: int, decode: int, context: int, pairs: int, step: int, joined: int = 0) -> Ns:
        """As `step_ns`, with the shape's numbers in its order."""
        exact = self._prefill * prefill + self._decode * decode + self._context * context + self._pair * pairs
        exact += self._of_tokens(prefill + decode) if self._knots else self._fixed
        if joined:
            exact += (self._request + self._joined) * joined
        if self._noise_seed is not None:
            residual = 1 + self._residual_share * standard_normal(self._noise_seed, "residual", step)
            exact *= max(LEAST_FACTOR, self._drift * residual)
        return round(exact) or 1

    def decode_line(self, decode: int) -> tuple[float, float, float] | None:
        """(a, b, c) such that `decode_ns` is ``round(a + b * context + c)``, at least 1; None with noise."""
        if self._noise_seed is not None:
            return None
        fixed = self._of_tokens(decode) if self._knots else self._fixed
        return self._decode * decode, self._context, fixed

    def decode_ns(self, decode: int, context: int, step: int) -> Ns:
        """As `duration_ns` of a step in which requests only decode."""
        if self._knots or self._noise_seed is not None:
            return self.duration_ns(0, decode, context, 0, step)
        return round(self._decode * decode + self._context * context + self._fixed) or 1

    def parts(self, shape: StepShape, step: int) -> StepParts:
        """`step_ns` in parts: host and copies without noise, the device what is left, at least 1 ns."""
        host, copies = self._host, self._copies
        requests = shape.decode_requests + shape.joined
        tokens = shape.prefill_tokens + shape.decode_requests
        prepare = round(host.base_ns + host.request_ns * requests + host.joined_ns * shape.joined)
        copy_in = round(copies.input_base_ns + copies.input_token_ns * tokens)
        copy_out = round(copies.output_base_ns + copies.output_request_ns * requests)
        finish = round(host.finish_base_ns + host.finish_request_ns * requests)
        device = max(1, self.step_ns(shape, step) - prepare - copy_in - copy_out - finish)
        return StepParts(prepare, copy_in, device, copy_out, finish)

    def wake_ns(self, idle_ns: Ns) -> Ns:
        """What a step takes longer because nothing ran for ``idle_ns`` before it."""
        if not idle_ns or not self._wake:
            return 0
        last, most = self._wake[-1]
        return round(most if idle_ns >= last else _along(self._wake, idle_ns))

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
        return self._fixed + _along(self._knots, tokens)


def _along(knots: Knots, place: int) -> float:
    """The line through ``knots`` at ``place``: level before the first, straight on after the last, 0 without any."""
    if not knots:
        return 0.0
    if len(knots) == 1 or place <= knots[0][0]:
        return knots[0][1]
    at = min(bisect_right([knot for knot, _ns in knots], place), len(knots) - 1)
    (left, low), (right, high) = knots[at - 1], knots[at]
    return low + (high - low) * (place - left) / (right - left)
