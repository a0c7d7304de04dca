"""The gate: what becomes of a request at the moment it is submitted."""

from typing import NamedTuple, Protocol

from scheduler_core.request.spec import RequestSpec
from scheduler_core.types.reasons import Disposal
from scheduler_core.types.records import Gated
from scheduler_core.types.time import Ns


class GateInputs(NamedTuple):
    """What a gate decides by, logged with every decision that is not merely to queue.

    ``kv_used`` are leased blocks, without what could be evicted; ``queued_tokens`` prompt tokens that wait to be
    computed; ``wait_ns`` how long those are estimated to take; ``work_tokens`` what the request itself may cost;
    ``attainment`` the share of first tokens that kept their promise, as far as an adaptive gate has looked at it.
    """

    now_ns: Ns
    waiting: int
    kv_used: int
    kv_total: int
    queued_tokens: int
    wait_ns: Ns
    work_tokens: int
    tier: str
    attainment: float | None = None


class GateAnswer(NamedTuple):
    """What becomes of a request: ``trigger`` names the rule, ``need`` and ``have`` are the numbers it compared.

    A throttled one may be considered from ``until_ns`` on; ``spec`` is the request as it is taken in, degraded or not.
    """

    disposal: Disposal
    spec: RequestSpec
    inputs: GateInputs
    trigger: str = ""
    need: int = 0
    have: int = 0
    until_ns: Ns = 0


class Gate(Protocol):
    """Does this request come in, when, and as what?"""

    def decide(self, spec: RequestSpec, occupancy: tuple[int, int, int], now_ns: Ns) -> GateAnswer:
        """``occupancy`` are waiting requests, leased blocks and all blocks."""


def gated_record(answer: GateAnswer) -> Gated:
    """The record of a decision, with all it was made by."""
    inputs, spec = answer.inputs, answer.spec
    return Gated(
        at_ns=inputs.now_ns,
        request=spec.id,
        disposal=answer.disposal.value,
        trigger=answer.trigger,
        need=answer.need,
        have=answer.have,
        until_ns=answer.until_ns,
        output_limit=spec.output_limit,
        priority=spec.priority,
        waiting=inputs.waiting,
        kv_used=inputs.kv_used,
        kv_total=inputs.kv_total,
        queued_tokens=inputs.queued_tokens,
        wait_ns=inputs.wait_ns,
        work_tokens=inputs.work_tokens,
        attainment=inputs.attainment,
    )
