"""Tiers with instances of their own: what one of them asks for takes nothing from the others (isolation)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scheduler_core.cluster.load import Load
from scheduler_core.types.cluster_records import Overflowed
from scheduler_core.types.records import Record
from scheduler_core.types.time import Ns


@dataclass(frozen=True, slots=True)
class TierGround:
    """The instances of a tier; those of ``overflow`` take its requests too while each of its own has ``overflow_at``
    requests or more."""

    own: frozenset[int]
    overflow: frozenset[int] = frozenset()
    overflow_at: float = 0.0


@dataclass
class Isolation:
    """By tier where its requests may go; ``rest`` is for all tiers that are not named."""

    tiers: Mapping[str, TierGround]
    rest: frozenset[int]
    records: list[Record] = field(default_factory=list)

    def among(self, tier: str, members: Sequence[int], loads: Sequence[Load]) -> tuple[int, ...]:
        """Those of ``members`` that a request of ``tier`` may go to; none where its own are out and none is lent."""
        ground = self.tiers.get(tier, TierGround(self.rest))
        own = tuple(member for member in members if member in ground.own)
        if own and any(loads[member].open < ground.overflow_at for member in own):
            return own
        beyond = tuple(member for member in members if member in ground.overflow)
        return tuple(sorted((*own, *beyond)))

    def own(self, tier: str) -> frozenset[int]:
        """The instances of ``tier`` itself; of one that is not named, those of all that are not."""
        ground = self.tiers.get(tier)
        return self.rest if ground is None else ground.own

    def grounds(self) -> list[frozenset[int]]:
        """The instances of each tier, and those of all others: no instance is in two of them, and none is empty."""
        return [own for own in (*(ground.own for ground in self.tiers.values()), self.rest) if own]

    def went(self, request: int, tier: str, member: int, now_ns: Ns) -> None:
        """A request went to ``member``; beyond its tier's own instances that is worth a record."""
        ground = self.tiers.get(tier)
        if ground is not None and member not in ground.own:
            self.records.append(Overflowed(now_ns, request, member, tier))
