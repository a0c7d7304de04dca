"""How long a step takes on the modelled target, in whole nanoseconds."""

from collections.abc import Iterator
from dataclasses import dataclass

from scheduler_core.sim.noise import standard_normal
from scheduler_core.spec.target import Affine, Profile
from scheduler_core.types.shape import StepShape
from scheduler_core.types.time import Ns

LEAST_FACTOR = 0.05


def affine_ns(cost: Affine, shape: StepShape) -> float:
    """`spec.target.Affine` of a step's shape, in ns, not rounded."""
    return (
        cost.base_ns
        + cost.prefill_token_ns * shape.prefill_tokens
        + cost.decode_request_ns * shape.decode_requests
        + cost.context_token_ns * shape.context_tokens
        + cost.prefill_pair_ns * shape.prefill_pairs
    )


@dataclass(frozen=True, slots=True)
class StepCost:
    """Step durations of a profile; with a noise seed, a drift of the whole run and a residual of each step.

    Noise is multiplicative: ``exact * (1 + drift) * (1 + residual)``, both normal with the standard deviations that
    calibration measured, and depends only on the seed and the step's number.
    """

    profile: Profile
    noise_seed: int | None = None

    def step_ns(self, shape: StepShape, step: int) -> Ns:
        """Duration of step number ``step``, at least 1 ns."""
        return max(1, round(affine_ns(self.profile.cost, shape) * self._factor(step)))

    def decode_run_ns(self, shape: StepShape, first_step: int) -> Iterator[Ns]:
        """Durations of consecutive decode-only steps, each of which reads one more token per request."""
        context = shape.context_tokens
        step = first_step
        while True:
            yield self.step_ns(StepShape(0, shape.decode_requests, context, 0), step)
            context += shape.decode_requests
            step += 1

    def _factor(self, step: int) -> float:
        if self.noise_seed is None:
            return 1.0
        drift = self.profile.drift_share * standard_normal(self.noise_seed, "drift", 0)
        residual = self.profile.residual_share * standard_normal(self.noise_seed, "residual", step)
        return max(LEAST_FACTOR, (1 + drift) * (1 + residual))
