"""One request of a frozen arrival plan, as the driver and the executors see it."""

from dataclasses import dataclass, fields
from typing import Any

from scheduler_core.types.time import Ns

_NEXT_SAMPLE = 0x9E3779B97F4A7C15
_SEEDS = 1 << 63


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One row of an arrival plan; integers only, so its digest is the same everywhere.

    Either ``after`` is empty and ``arrival_ns`` is absolute from the start of the run, or ``after`` are the indices of
    the requests whose ends this one waits for and ``arrival_ns`` is the think time added to the last of them.

    ``output_tokens`` is the true length. It goes to executors only: schedulers are given a `RequestSpec`, which knows
    the declared ``output_limit`` and nothing else about the answer.

    ``cancel_ns`` after its arrival its client gives up, if it has not ended by then; None: never.

    ``prefix_blocks`` are identities of consecutive shared prompt blocks of ``ArrivalPlan.block_size`` tokens from the
    start of the prompt; equal leading ids mean equal leading tokens. A block's tokens are a function of its id; the
    last id may stand for a block that the prompt fills only in part, with the block's first tokens. What lies beyond
    the last id is private to ``seed``. There are never more ids than ``ceil(prompt_tokens / block_size)``.

    Of several samples of one prompt, ``group`` is the index of the first; they have consecutive indices, equal prompts
    and, with them, equal seeds. None: the only one.
    """

    index: int
    arrival_ns: Ns
    prompt_tokens: int
    output_tokens: int
    output_limit: int
    seed: int
    tenant: str = "default"
    tier: str = "default"
    session: int | None = None
    turn: int = 0
    after: tuple[int, ...] = ()
    prefix_blocks: tuple[int, ...] = ()
    priority: int = 0
    cancel_ns: Ns | None = None
    group: int | None = None

    def __reduce__(self) -> tuple[type["PlannedRequest"], tuple[Any, ...]]:
        """Made anew where it is unpickled: machine code lets nobody fill in the fields of a frozen one."""
        return PlannedRequest, tuple(getattr(self, item.name) for item in fields(self))

    @property
    def draw_seed(self) -> int:
        """Key of all that is drawn for its answer: that of its prompt, and another one for each further sample."""
        return draw_seed(self.seed, self.index, self.group)


def draw_seed(seed: int, index: int, group: int | None) -> int:
    """The seed of what is drawn for request ``index`` of a ``group`` of samples of the prompt of ``seed``."""
    return seed if group is None else (seed + (index - group) * _NEXT_SAMPLE) % _SEEDS
