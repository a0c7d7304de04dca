"""Lengths announced to schedulers for the sake of a study: what would perfect, or nearly perfect, knowledge be worth?

This is the only way in which anything about a true output length can reach a policy, and it is outside the scheduler:
a run has it only where its policy says ``predict.by: perfect``.
"""

from typing import NamedTuple

from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.noise import blurred


class Foresight(NamedTuple):
    """Announces each request's true output length with an error: times ``bias``, and lognormal of size ``sigma``."""

    sigma: float = 0.0
    bias: float = 1.0
    seed: int = 0

    def of(self, planned: PlannedRequest) -> int:
        """The length announced for ``planned``, at least 1 and at most its declared limit."""
        length = min(planned.output_tokens, planned.output_limit)
        seen = blurred(length, sigma=self.sigma, bias=self.bias, seed=self.seed, counter=planned.index)
        return min(max(1, round(seen)), planned.output_limit)
