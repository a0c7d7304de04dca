"""The ratio of prefill to decode: instances move from the pool that can spare one to the one that is short.

::

    decode ── prefill short for a whole window, decode can spare one ── leaving ── empty ── prefill
              (and the reverse)                                         gets nothing new
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scheduler_core.cluster.load import Load
from scheduler_core.cluster.pools import Pool, Pools
from scheduler_core.cluster.router import Estimate
from scheduler_core.cluster.sustained import Sustained
from scheduler_core.types.time import Ns


@dataclass(frozen=True, slots=True)
class RebalanceRules:
    """A pool is short while its pressure is over 1: ``prefill_wait_ns`` of prompts wait at an instance, on average, or
    the requests to decode hold, or will hold, ``decode_kv_share`` of all its KV.

    One instance moves once a pool was short at every look (``every_ns``) of ``window_ns`` while the other could spare
    one: with one instance less its pressure, by proportion, would still be under 1. A move the other way waits
    ``cooldown_ns``.
    """

    prefill_wait_ns: Ns
    decode_kv_share: float
    window_ns: Ns
    every_ns: Ns
    cooldown_ns: Ns


@dataclass(frozen=True, slots=True)
class Balance:
    """What is weighed: the ``members`` among which instances move, loads and KV tokens of a whole pool by instance, how
    long prompts take, whether one is ``idle``, and the KV tokens that are to be decoded, but with no instance that
    decodes yet. Of each pool ``least`` instances stay."""

    members: frozenset[int]
    loads: Sequence[Load]
    capacity: Sequence[int]
    estimate: Estimate
    idle: Callable[[int], bool]
    outside: Callable[[], int]
    least: Mapping[Pool, int]


class Rebalancer:
    """Moves one instance at a time. One that is lent, or off, neither counts nor moves."""

    def __init__(self, pools: Pools, balance: Balance, rules: RebalanceRules) -> None:
        self._pools, self._balance, self._rules = pools, balance, rules
        self._sustained = Sustained(rules.window_ns, rules.cooldown_ns)
        self._look_ns = rules.every_ns
        self._leaving: tuple[int, Pool] | None = None

    def next_ns(self) -> Ns:
        """When `advance` has something to do by time alone."""
        return self._look_ns

    def emptying(self) -> tuple[int, ...]:
        """Instances that still decode, but get nothing new."""
        return (self._leaving[0],) if self._leaving is not None and self._leaving[1] is Pool.PREFILL else ()

    def advance(self, now_ns: Ns, up: Sequence[int]) -> None:
        """Finish a move, or begin one among the instances that are ``up``."""
        if self._leaving is not None and self._balance.idle(self._leaving[0]):
            (member, pool), self._leaving = self._leaving, None
            self._pools.move(member, pool, "empty", now_ns)
        if now_ns < self._look_ns:
            return
        self._look_ns = now_ns - now_ns % self._rules.every_ns + self._rules.every_ns
        members = self._balance.members
        prefill = [member for member in self._pools.of(Pool.PREFILL) if member in up and member in members]
        decode = [member for member in self._pools.of(Pool.DECODE) if member in up and member in members]
        if self._leaving is None and prefill and decode:
            self._look(prefill, decode, now_ns)

    def _look(self, prefill: Sequence[int], decode: Sequence[int], now_ns: Ns) -> None:
        wanted, held = self._prefill_pressure(prefill), self._decode_pressure(decode)
        least = self._balance.least
        short_of_prefill = wanted > 1 and _less_one(held, len(decode), least[Pool.DECODE]) < 1
        short_of_decode = held > 1 and _less_one(wanted, len(prefill), least[Pool.PREFILL]) < 1
        side = 1 if short_of_prefill else -1 if short_of_decode else 0
        if not self._sustained.due(side, now_ns):
            return
        self._sustained.done(side, now_ns)
        giving, pool = (decode, Pool.PREFILL) if side > 0 else (prefill, Pool.DECODE)
        member = min(giving, key=lambda index: (self._balance.loads[index].open, -index))
        self._leaving = member, pool
        self._pools.change(member, Pool.LEAVING, f"pressure of prefill {wanted:.3g}, of decode {held:.3g}", now_ns)

    def _prefill_pressure(self, members: Sequence[int]) -> float:
        tokens = {member: self._balance.loads[member].prefill_tokens for member in members}
        waits = [self._balance.estimate(member, waiting) for member, waiting in tokens.items() if waiting]
        return sum(waits) / len(members) / self._rules.prefill_wait_ns

    def _decode_pressure(self, members: Sequence[int]) -> float:
        held = sum(self._balance.loads[member].kv_tokens for member in members) + self._balance.outside()
        return held / sum(self._balance.capacity[member] for member in members) / self._rules.decode_kv_share


def _less_one(pressure: float, count: int, least: int) -> float:
    """What the pressure of ``count`` instances would be with one less; beyond all bounds where ``least`` are left."""
    return pressure * count / (count - 1) if count > least else float("inf")
