"""Which instances may take new requests in, which decode, and which can be reached: by pool, power and outages."""

from collections.abc import Sequence

from scheduler_core.cluster.outages import Outages
from scheduler_core.cluster.pools import Pool, Pools
from scheduler_core.cluster.rebalancing import Rebalancer
from scheduler_core.cluster.scaling import Power, Scaler
from scheduler_core.types.records import Record
from scheduler_core.types.time import NEVER, Ns

COMPUTES = Pool.PREFILL, Pool.MIXED
DECODES = Pool.DECODE, Pool.MIXED


class Doors:
    """``entries`` take new requests in, ``decoders`` those that are computed; both as of the last `open`."""

    def __init__(
        self, pools: Pools, scalers: Sequence[Scaler], rebalancers: Sequence[Rebalancer], outages: Outages | None
    ) -> None:
        self.pools = pools
        self._scalers, self._rebalancers, self._outages = scalers, rebalancers, outages
        self._everybody = tuple(range(len(pools.homes)))
        self.rebalances = bool(rebalancers)
        self.still = not scalers and not rebalancers and outages is None
        """Whether no time changes anything."""
        self.open()

    def open(self) -> None:
        """Look again who may take what."""
        self.entries = self.up(self.pools.of(*COMPUTES))
        self.decoders = self.up(self.pools.of(*DECODES))

    def advance(self, now_ns: Ns) -> list[tuple[int, str]]:
        """Start, drain and move what is due by ``now_ns``; what became of instances outside: (member, what)."""
        for scaler in self._scalers:
            scaler.advance(now_ns)
        happened = [] if self._outages is None else self._outages.take(now_ns)
        for rebalancer in self._rebalancers:
            rebalancer.advance(now_ns, self.up(self._everybody))
        return happened

    def next_ns(self) -> Ns:
        """When `advance` has something to do by time alone; `NEVER` when it has not."""
        times = [scaler.next_ns() for scaler in self._scalers]
        times += [rebalancer.next_ns() for rebalancer in self._rebalancers]
        if self._outages is not None:
            times.append(self._outages.next_ns())
        return min(times, default=NEVER)

    def up(self, members: Sequence[int]) -> tuple[int, ...]:
        """``members`` that are on, without those known to be out."""
        away = set() if self._outages is None else set(self._outages.out)
        for scaler in self._scalers:
            away.update(scaler.those(Power.OFF, Power.STARTING, Power.DRAINING))
        return tuple(member for member in members if member not in away)

    def lendable(self) -> tuple[int, ...]:
        """Who is on and known to serve, whatever it works for, but does not leave its pool."""
        return tuple(member for member in self.up(self._everybody) if self.pools[member] is not Pool.LEAVING)

    def holding(self) -> tuple[int, ...]:
        """Instances that may have requests that decode and can be reached: also those that drain, or are leaving."""
        away = set() if self._outages is None else self._outages.out & self._outages.dead
        for scaler in self._scalers:
            away.update(scaler.those(Power.OFF, Power.STARTING))
        members = {*self.pools.of(*DECODES)}
        for rebalancer in self._rebalancers:
            members.update(rebalancer.emptying())
        return tuple(sorted(members - away))

    def serves(self, member: int) -> bool:
        """Whether a member is not dead."""
        return self._outages is None or member not in self._outages.dead

    def take_records(self) -> list[Record]:
        """Records of power, pools and outages since the last call."""
        records: list[Record] = []
        for part in (*self._scalers, self.pools, self._outages):
            if part is not None:
                records += part.records
                part.records = []
        return records
