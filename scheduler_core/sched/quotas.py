"""How many KV blocks a tenant may hold at once, so that one cannot fill the pool alone.

A tenant's blocks are those in the tables of its requests, and those promised to them; a block that several share counts
for each. Cached blocks that nobody holds are nobody's. The quota is kept twice: at admission, where who would exceed it
is passed over and the others go on (nobody passes one of its own tenant, though), and when running requests grow, where
one of the tenant's own is stopped, chosen as the policy chooses victims.
"""

from collections import Counter
from collections.abc import Iterator

from scheduler_core.kv.rules import Quotas
from scheduler_core.request.live import LiveRequest
from scheduler_core.sched.decisions import Deferral
from scheduler_core.sched.state import InstanceState
from scheduler_core.types.errors import LawError
from scheduler_core.types.reasons import Defer


class QuotaBook:
    """What each tenant holds while a step is planned: counted when first asked for, O(running), and kept up to date."""

    __slots__ = ("_deferred", "_held", "_quotas", "_state")

    def __init__(self, state: InstanceState, quotas: Quotas) -> None:
        self._state = state
        self._quotas = quotas
        self._held: Counter[str] | None = None
        self._deferred: dict[str, Deferral] = {}

    def begin(self) -> None:
        """A step begins, or requests have given up blocks: count anew, and ask everybody anew."""
        self._held = None
        self._deferred.clear()

    def admitted(self) -> None:
        """A request has come in: its tenant holds more, so whoever was passed over still is."""
        self._held = None

    def defer(self, request: LiveRequest, reserve: int) -> Deferral | None:
        """Why ``request`` cannot come in, or None.

        It needs room for its known tokens, and for what the policy wants in sight, ``reserve`` positions, as far as
        they can ever be written.
        """
        tenant = request.spec.tenant
        quota = self._quotas.of(tenant)
        if quota is None:
            return None
        known = self._deferred.get(tenant)
        if known is not None:
            return known
        tokens, size = max(request.known, min(reserve, request.worst_tokens)), self._state.memory.block_size
        need = self._counted()[tenant] + -(-tokens // size) - request.blocks
        if need <= quota:
            return None
        deferral = self._deferred[tenant] = Deferral(Defer.TENANT_QUOTA, need, quota, skip=True)
        return deferral

    def exceeds(self, request: LiveRequest, blocks: int) -> bool:
        """Whether ``blocks`` more for a running request are beyond its tenant's quota."""
        quota = self._quotas.of(request.spec.tenant)
        more = blocks - request.pledge
        return quota is not None and more > 0 and self._counted()[request.spec.tenant] + more > quota

    def grew(self, request: LiveRequest, blocks: int) -> None:
        """A running request is about to take ``blocks`` more, its pledge first."""
        if self._held is not None:
            self._held[request.spec.tenant] += max(0, blocks - request.pledge)

    def check(self) -> None:
        """`LawError` names a tenant above its quota; what other instances hand over is not held to it."""
        if self._state.parked or self._state.lodged:
            return
        for tenant, held in _count(self._state).items():
            quota = self._quotas.of(tenant)
            if quota is not None and held > quota:
                raise LawError(f"tenant {tenant} holds {held} blocks, its quota is {quota}")

    def _counted(self) -> Counter[str]:
        if self._held is None:
            self._held = _count(self._state)
        return self._held


def _count(state: InstanceState) -> Counter[str]:
    held: Counter[str] = Counter()
    for request in _holders(state):
        held[request.spec.tenant] += request.blocks + request.pledge
    return held


def _holders(state: InstanceState) -> Iterator[LiveRequest]:
    yield from state.running.values()
    yield from state.held
    yield from state.stopped.values()
    yield from state.parked.values()
    yield from state.lodged.values()
