"""How long a step takes on the modelled target, in whole nanoseconds."""

from scheduler_core.sim.noise import standard_normal
from scheduler_core.spec.target import Profile
from scheduler_core.types.shape import StepShape
from scheduler_core.types.time import Ns

LEAST_FACTOR = 0.05


class StepCost:
    """Step durations of a profile; with a noise seed, a drift of the whole run and a residual of each step.

    Noise is multiplicative: ``exact * (1 + drift) * (1 + residual)``, both normal with the standard deviations that
    calibration measured, and depends only on the seed and the step's number.
    """

    __slots__ = ("_base", "_context", "_decode", "_drift", "_noise_seed", "_pair", "_prefill", "_residual_share")

    def __init__(self, profile: Profile, noise_seed: int | None = None) -> None:
        cost = profile.cost
        self._base, self._prefill, self._decode = cost.base_ns, cost.prefill_token_ns, cost.decode_request_ns
        self._context, self._pair = cost.context_token_ns, cost.prefill_pair_ns
        self._residual_share = profile.residual_share
        self._noise_seed = noise_seed
        self._drift = 1.0
        if noise_seed is not None:
            self._drift = 1 + profile.drift_share * standard_normal(noise_seed, "drift", 0)

    def step_ns(self, shape: StepShape, step: int) -> Ns:
        """Duration of step number ``step``, at least 1 ns: `spec.target.Affine` of its shape, with noise."""
        return self.duration_ns(*shape, step)

    def duration_ns(self, prefill: int, decode: int, context: int, pairs: int, step: int) -> Ns:
        """As `step_ns`, with the shape's numbers in its order."""
        exact = self._base + self._prefill * prefill + self._decode * decode + self._context * context
        exact += self._pair * pairs
        if self._noise_seed is not None:
            residual = 1 + self._residual_share * standard_normal(self._noise_seed, "residual", step)
            exact *= max(LEAST_FACTOR, self._drift * residual)
        return round(exact) or 1
