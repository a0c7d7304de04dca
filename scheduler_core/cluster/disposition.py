"""What becomes of a computed prompt, and where: predictions, preferences, and who has room."""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_core.cluster.isolation import Isolation
from scheduler_core.cluster.links import Links
from scheduler_core.cluster.load import Load
from scheduler_core.cluster.router import Estimate
from scheduler_core.cluster.rules import Action, Fallback, Rules
from scheduler_core.cluster.transfer import Transfer
from scheduler_core.sched.instance import Instance
from scheduler_core.types.time import Ns

# Bound once: in CPython 3.11 reading a member off its enum class costs ten times a global.
_TRANSFER, _RECOMPUTE = Action.TRANSFER, Action.RECOMPUTE


@dataclass(frozen=True, slots=True)
class Ways:
    """What handoffs work on: instances and their loads by index, links, who decodes, and how fast prefill is.

    With ``isolation`` a tier's requests are decoded by its own.
    """

    instances: Sequence[Instance]
    loads: Sequence[Load]
    links: Links
    decoders: Sequence[int]
    estimate: Estimate
    isolation: Isolation | None = None


class Disposition:
    """Compares what a handoff may do. ``decoders`` may take requests in; ``promised`` KV tokens have a place there, and
    may be on their way, by index of instance."""

    def __init__(self, ways: Ways, rules: Rules) -> None:
        self._ways, self._rules = ways, rules
        self._first = None if rules.prefer == "cheapest" else Action(rules.prefer)
        self.decoders: Sequence[int] = ways.decoders
        self.promised = [0] * len(ways.instances)

    def promise(self, transfer: Transfer, tokens: int) -> None:
        """A request has a place for ``tokens`` where it is to decode, in place of what was promised there before."""
        self.promised[transfer.destination] += tokens - transfer.promised
        transfer.promised = tokens

    def destination(self, transfer: Transfer) -> int | None:
        """Where a request is to decode: as planned, if that still decodes."""
        planned = transfer.planned
        return planned if planned is not None and planned in self.decoders else self.choose(transfer.tier)

    def choose(self, tier: str) -> int | None:
        """The decoding instance with the least KV in its pool or promised there, relative to its size.

        None when there is none that a request of ``tier`` may go to.
        """
        loads, instances, isolation = self._ways.loads, self._ways.instances, self._ways.isolation
        decoders = self.decoders if isolation is None else isolation.among(tier, self.decoders, loads)

        chosen, least = None, 0
        for index in decoders:
            limits = instances[index].policy.limits
            tokens = loads[index].kv_tokens + self.promised[index]
            fullness = tokens * 1_000_000 // (limits.kv_blocks * limits.block_size)
            if chosen is None or (fullness, index) < (least, chosen):
                chosen, least = index, fullness
        return chosen

    def predict(self, transfer: Transfer, now_ns: Ns) -> tuple[Ns, Ns]:
        """(transfer, recomputation) as they would take from now."""
        left = transfer.left
        assert left is not None
        hit = transfer.reserved.hit_tokens if transfer.reserved is not None else 0
        size = (left.computed - max(hit, transfer.sent)) * self._rules.kv_bytes_per_token
        link = self._ways.links.between(transfer.source, transfer.destination)
        return link.predict_ns(max(0, size), transfer, now_ns), self._ways.estimate(transfer.destination, left.known)

    def wanted(self, transfer_ns: Ns, recompute_ns: Ns) -> tuple[Action, str]:
        """What the rules prefer at these predicted costs, and why it is not the first choice."""
        first, budget = self._first, self._rules.budget_ns
        if first is None:
            first = _TRANSFER if transfer_ns < recompute_ns else _RECOMPUTE  # of equals the one that needs no link
        if first is Action.STAY or budget is None:
            return first, ""
        mine, others, other = transfer_ns, recompute_ns, _RECOMPUTE
        if first is _RECOMPUTE:
            mine, others, other = recompute_ns, transfer_ns, _TRANSFER
        if mine <= budget:
            return first, ""
        return (other if others <= budget else Action.STAY), Fallback.OVER_BUDGET

    def out_of_patience(self, transfer: Transfer, now_ns: Ns) -> bool:
        """Whether a request that waits for room has waited long enough."""
        patience, ready = self._rules.patience_ns, transfer.ready_ns
        return patience is not None and ready is not None and now_ns >= ready + patience
