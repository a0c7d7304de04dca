"""The immutable description of a request that schedulers are given."""

from typing import NamedTuple

from scheduler_core.types.arrival import PlannedRequest, draw_seed
from scheduler_core.types.errors import CallerError
from scheduler_core.types.time import Ns


class RequestSpec(NamedTuple):
    """What may be known of a request on arrival; the true output length is not part of it.

    ``prefix_blocks`` are identities of leading prompt blocks of ``prefix_block_size`` tokens; tokens after them are
    private to ``seed``. ``output_limit`` is the declared most output tokens, at least 1. ``foreseen`` is a length
    announced from outside, for a study (`scheduler_core.types.foresight`). ``group`` is the id of the first of several
    samples of one prompt, None for the only one.
    """

    id: int
    arrival_ns: Ns
    prompt_tokens: int
    output_limit: int
    tenant: str = "default"
    tier: str = "default"
    priority: int = 0
    seed: int = 0
    prefix_blocks: tuple[int, ...] = ()
    prefix_block_size: int = 16
    session: int | None = None
    foreseen: int | None = None
    group: int | None = None

    @property
    def draw_seed(self) -> int:
        """As `PlannedRequest.draw_seed`."""
        return draw_seed(self.seed, self.id, self.group)

    def check(self) -> None:
        """`CallerError` when a length is not at least 1."""
        if self.prompt_tokens < 1 or self.output_limit < 1 or self.prefix_block_size < 1:
            raise CallerError(
                f"request {self.id}: prompt ({self.prompt_tokens}), output limit ({self.output_limit}) and prefix "
                f"block size ({self.prefix_block_size}) must be at least 1"
            )

    @classmethod
    def from_planned(
        cls, planned: PlannedRequest, *, arrival_ns: Ns, prefix_block_size: int, foreseen: int | None = None
    ) -> "RequestSpec":
        """The schedulers' view of a planned request: everything but its true output length."""
        return cls(
            planned.index,
            arrival_ns,
            planned.prompt_tokens,
            planned.output_limit,
            planned.tenant,
            planned.tier,
            planned.priority,
            planned.seed,
            planned.prefix_blocks,
            prefix_block_size,
            planned.session,
            foreseen,
            planned.group,
        )
