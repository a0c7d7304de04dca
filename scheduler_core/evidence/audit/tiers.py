"""The part of the audit that holds tiers to the instances that a policy gives them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from scheduler_core.evidence.audit.moves import Check
from scheduler_core.types.cluster_records import OutageStage, Overflowed, Routed

_RULE = "tiers apart"
_AWAY, _BACK = ("noticed", "draining"), "back"


class Newest(Protocol):
    """A value that changes."""

    @property
    def now(self) -> str:
        """The newest one."""


class _Ground(NamedTuple):
    """Instances of a tier, those that help out, and from how many requests at each of its own on."""

    own: frozenset[int]
    overflow: frozenset[int]
    overflow_at: float


@dataclass
class TiersAudit:
    """Works on the section ``pools`` of a policy and the group of each instance.

    Counts are exact where a router knows loads of now; with ``look_every_ms`` they are not compared.
    """

    check: Check
    section: Mapping[str, Any]
    groups: Sequence[str]
    _tier: dict[int, str] = field(default_factory=dict)
    _told: dict[int, set[int]] = field(default_factory=dict)
    _seen: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    _out: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        def those(groups: Iterable[str]) -> frozenset[int]:
            return frozenset(index for index, group in enumerate(self.groups) if group in groups)

        self._grounds = {
            name: _Ground(those(tier["groups"]), those(tier.get("overflow") or ()), tier.get("overflow_at") or 0.0)
            for name, tier in self.section["tiers"].items()
        }
        named = frozenset[int]().union(*(ground.own for ground in self._grounds.values()))
        self._rest = _Ground(frozenset(range(len(self.groups))) - named, frozenset(), 0.0)

    def ground(self, member: int) -> frozenset[int]:
        """The instances of the tier whose own ``member`` is."""
        return next((ground.own for ground in self._grounds.values() if member in ground.own), self._rest.own)

    def arrived(self, request: int, tier: str) -> None:
        """A request of a tier is there."""
        self._tier[request] = tier

    def ended(self, request: int) -> None:
        """A request is over."""
        for known in (self._tier, self._told, self._seen):
            known.pop(request, None)

    def outage(self, record: OutageStage) -> None:
        """An instance is known to take nothing, or takes requests again."""
        if record.what in _AWAY:
            self._out.add(record.instance)
        elif record.what == _BACK:
            self._out.discard(record.instance)

    def routed(
        self,
        record: Routed,
        here: Mapping[int, Mapping[int, Any]],
        pools: Sequence[Newest],
        power: Sequence[Newest],
    ) -> None:
        """A request came in: how many requests each instance of its own that might have taken it has."""
        ground = self._of(record.request)
        if record.instance in ground.own or self.section.get("look_every_ms"):
            return
        takes = ("prefill", "mixed") if not self.section.get("borrow_tokens") else ("prefill", "mixed", "decode")
        up = [m for m in ground.own if m not in self._out and power[m].now == "on" and pools[m].now in takes]
        self._seen[record.request] = record.instance, sorted(len(here.get(member) or ()) for member in up)

    def overflowed(self, record: Overflowed) -> None:
        """A request went beyond its tier's own instances."""
        ground, where = self._of(record.request), f"overflow of request {record.request}"
        tier = self._tier.get(record.request)
        self.check(_RULE, tier == record.tier, where, "told of tier {}, it is of {}", record.tier, tier)
        self.check(_RULE, record.instance in ground.overflow, where, "instance {} does not help out", record.instance)
        member, counts = self._seen.pop(record.request, (record.instance, []))
        full = all(count >= ground.overflow_at for count in counts)
        self.check(_RULE, full or member != record.instance, where, "its own have {} requests, fewer than {}", counts,
                    ground.overflow_at)  # fmt: skip
        self._told.setdefault(record.request, set()).add(record.instance)

    def admitted(self, request: int, member: int) -> None:
        """A request runs at an instance."""
        ground = self._of(request)
        apart = member in ground.own or member in self._told.get(request, ())
        self.check(_RULE, apart, f"admitted request {request}", "of tier {} at instance {}, which is not its own",
                    self._tier.get(request), member)  # fmt: skip

    def _of(self, request: int) -> _Ground:
        return self._grounds.get(self._tier.get(request, ""), self._rest)
