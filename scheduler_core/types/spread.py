"""What the devices of a parallel instance did in a step."""

from typing import NamedTuple

from scheduler_core.types.time import Ns


class Spread(NamedTuple):
    """Times of an average device. What they computed, ``exposed_ns`` and the waits add up to the device's time.

    ``communication_ns`` is the time of collectives and of handing on between stages, ``hidden_ns`` the part of it that
    ran beside computing. The waits: ``bubble_ns`` for another stage of the pipeline, ``rank_wait_ns`` for the most
    loaded attention replica, ``expert_wait_ns`` for the place with the most popular experts.

    ``experts`` is how many there are in a layer (0: nobody counted who chose which), ``expert_tokens`` how often they
    were chosen, ``expert_dropped`` how many of these choices were dropped because an expert was full, and
    ``expert_most`` how many the busiest one kept.
    """

    communication_ns: Ns
    hidden_ns: Ns
    bubble_ns: Ns
    rank_wait_ns: Ns
    expert_wait_ns: Ns
    experts: int = 0
    expert_tokens: int = 0
    expert_dropped: int = 0
    expert_most: int = 0

    @property
    def exposed_ns(self) -> Ns:
        """Communication beside which nothing was computed."""
        return self.communication_ns - self.hidden_ns

    @property
    def waits_ns(self) -> Ns:
        """Waiting of devices for each other."""
        return self.bubble_ns + self.rank_wait_ns + self.expert_wait_ns
