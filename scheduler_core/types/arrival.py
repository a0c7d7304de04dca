"""One request of a frozen arrival plan, as the driver and the executors see it."""

from dataclasses import dataclass

from scheduler_core.types.time import Ns


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
