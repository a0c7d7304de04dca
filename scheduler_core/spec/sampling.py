"""How a target chooses tokens."""

from pydantic import Field

from scheduler_core.spec.base import Spec


class Sampling(Spec):
    """How tokens are chosen: greedy at ``temperature`` 0, else drawn from the softmax of logits / temperature.

    A draw is kept to the ``top_k`` best tokens (0: all) and, of those, to the fewest whose probability reaches
    ``top_p``. It depends on the request's seed and the token's position, never on the batch.
    """

    temperature: float = Field(0.0, ge=0, le=100, description="0: always the most probable token.")
    top_k: int = Field(0, ge=0, description="Draw among this many of the most probable tokens; 0: among all.")
    top_p: float = Field(
        1.0, gt=0, le=1, description="Draw among the fewest tokens whose probabilities add up to this; 1: among all."
    )
