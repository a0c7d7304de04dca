"""The part of the audit that follows instances: their power and pools, who is there, and which tiers may be."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from scheduler_core.evidence.audit.moves import Check
from scheduler_core.evidence.audit.tiers import TiersAudit
from scheduler_core.types.cluster_records import (
    ColdStartStage,
    Handoff,
    Landed,
    Lost,
    OutageStage,
    Overflowed,
    PoolChanged,
    Reassigned,
    Routed,
    Scaled,
)
from scheduler_core.types.records import Admitted, Arrived, Finished, Record, RunStarted
from scheduler_core.types.time import Ns, ns_from_s

_POWER, _POOLS, _ROLES = "power in order", "pools in order", "roles kept"
_COMPUTES, _DECODES = {"prefill", "mixed"}, {"decode", "mixed"}
_NEXT = {"off": {"starting"}, "starting": {"on"}, "on": {"draining"}, "draining": {"off", "on"}}
_SCALES = {"mixed": "scale", "prefill": "scale_prefill", "decode": "scale_decode"}
_MEANS = (*_SCALES.values(), "rebalance", "borrow_tokens", "tiers")


class History:
    """A value and when it changed. Several changes at one instant are all held to have been true at it."""

    def __init__(self, value: str) -> None:
        self._at: list[Ns] = []
        self._values = [value]

    @property
    def now(self) -> str:
        """The newest value."""
        return self._values[-1]

    def change(self, at_ns: Ns, value: str) -> None:
        """It is ``value`` from ``at_ns`` on."""
        self._at.append(at_ns)
        self._values.append(value)

    def at(self, at_ns: Ns) -> set[str]:
        """What it was at that instant: before its changes, and after each."""
        first = bisect_left(self._at, at_ns)
        last = first
        while last < len(self._at) and self._at[last] == at_ns:
            last += 1
        return set(self._values[first : last + 1])


@dataclass
class _Start:
    """A cold start: when it began, and where the stages so far have led."""

    until_ns: Ns
    stages: list[str] = field(default_factory=list)


class PlacesAudit:
    """Follows runs whose policy has means that change who does what; of others it looks at nothing."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._section: Mapping[str, Any] = {}
        self._takers: dict[type[Any], Callable[[Any], None]] = {}
        self._power: list[History] = []
        self._pools: list[History] = []
        self._homes: list[str] = []
        self._stages_ns: dict[str, Ns] | None = None
        self._starts: dict[int, _Start] = {}
        self._here: defaultdict[int, dict[int, Ns]] = defaultdict(dict)
        self._member: dict[int, int] = {}
        self._entered: dict[int, tuple[Ns, int, bool]] = {}
        self._emptied: list[tuple[Ns, int, str, set[int]]] = []
        self._tiers: TiersAudit | None = None

    def started(self, record: RunStarted) -> None:
        """The run began: what its policy may do, and what its instances are."""
        section = record.policy.get("pools") or {}
        forked = "forked_at_s" in record.fingerprint  # before the fork another policy ruled
        if not record.instances or forked or not any(section.get(name) for name in _MEANS):
            return
        self._section = section
        groups, prefill = [one["group"] for one in record.instances], section.get("prefill") or ()
        split = section.get("layout") == "split"
        self._homes = ["mixed" if not split else "prefill" if group in prefill else "decode" for group in groups]
        self._pools = [History(home) for home in self._homes]
        self._power = [History("on") for _ in groups]
        topology = ((record.target.get("modelled") or {}).get("topology") or {}) if record.target else {}
        cold = topology.get("cold_start")
        if cold is not None:
            self._stages_ns = {name.removesuffix("_s"): ns_from_s(s) for name, s in cold.items() if s}
        self._tiers = TiersAudit(self._check, section, groups) if section.get("tiers") else None
        self._takers = {
            Arrived: self._arrived,
            Routed: self._routed,
            Admitted: self._admitted,
            Landed: self._landed,
            Handoff: self._handoff,
            Reassigned: self._reassigned,
            Lost: self._lost,
            Finished: self._finished,
            Scaled: self._scaled,
            ColdStartStage: self._stage,
            PoolChanged: self._pool_changed,
            OutageStage: self._outage,
            Overflowed: self._overflowed,
        }

    def take(self, record: Record) -> None:
        """Replay one record."""
        taker = self._takers.get(type(record))
        if taker is not None:
            if self._emptied:
                self._empty_by(record.at_ns)  # type: ignore[union-attr]  # all that are taken have it
            taker(record)

    def close(self) -> None:
        """There are no more records."""
        self._empty_by(None)

    # --- instances ---------------------------------------------------------------------------------------------

    def _scaled(self, record: Scaled) -> None:
        where, member = f"power of instance {record.instance}", record.instance
        power, home = self._power[member], self._homes[member]
        self._check(_POWER, bool(self._section.get(_SCALES[home])), where, "{}, but no {} is set", record.power,
                    _SCALES[home])  # fmt: skip
        begins = record.at_ns == 0 and record.power in ("on", "off")
        self._check(_POWER, begins or record.power in _NEXT[power.now], where, "{} after {}", record.power, power.now)
        if record.power == "starting":
            self._starts[member] = _Start(record.at_ns)
        start = self._starts.pop(member, None) if record.power == "on" else None
        if start is not None:
            self._check(_POWER, record.at_ns == start.until_ns, where, "on at {} ns, its stages end at {}",
                        record.at_ns, start.until_ns)  # fmt: skip
            if self._stages_ns is not None:
                told, due = start.stages, list(self._stages_ns)
                self._check(_POWER, told == due, where, "went through {}, the target has {}", told, due)
        power.change(record.at_ns, record.power)
        if record.power == "draining":
            self._enough_on(record, home)
        elif record.power == "off" and record.at_ns:
            self._empties(record.at_ns, member, _POWER)

    def _enough_on(self, record: Scaled, home: str) -> None:
        least = int((self._section.get(_SCALES[home]) or {}).get("least", 1))
        ground = self._ground(record.instance)
        on = [m for m in ground if self._homes[m] == home and self._power[m].now == "on"]
        self._check(_POWER, len(on) >= least, f"power of instance {record.instance}", "{} of its pool are left on, at "
                    "least {} are to be", len(on), least)  # fmt: skip

    def _stage(self, record: ColdStartStage) -> None:
        where, start = f"cold start of instance {record.instance}", self._starts.get(record.instance)
        follows = start is not None and start.until_ns == record.at_ns
        self._check(_POWER, follows, where, "{} at {} ns, which is not when the stage before it ended", record.stage,
                    record.at_ns)  # fmt: skip
        if start is not None:
            start.until_ns = record.until_ns
            start.stages.append(record.stage)
        if self._stages_ns is not None:
            takes_ns, due_ns = record.until_ns - record.at_ns, self._stages_ns.get(record.stage)
            self._check(_POWER, takes_ns == due_ns, where, "{} takes {} ns, the target says {}", record.stage, takes_ns,
                        due_ns)  # fmt: skip

    def _pool_changed(self, record: PoolChanged) -> None:
        where, member = f"pool of instance {record.instance}", record.instance
        before, home = self._pools[member].now, self._homes[member]
        if record.pool == "leaving":
            fits = before in ("prefill", "decode") and bool(self._section.get("rebalance"))
        elif record.pool == "mixed":
            fits = before in ("prefill", "decode") and bool(self._section.get("borrow_tokens"))
        else:
            fits = record.pool != home if before == "leaving" else before == "mixed" and record.pool == home
            self._homes[member] = record.pool
            self._empties(record.at_ns, member, _POOLS)
        self._check(_POOLS, fits, where, "{} after {}, home is {}", record.pool, before, home)
        self._pools[member].change(record.at_ns, record.pool)
        now = {self._pools[other].now for other in self._ground(member)}
        self._check(_POOLS, bool(now & _COMPUTES and now & _DECODES), where, "only {} are left", sorted(now))

    def _outage(self, record: OutageStage) -> None:
        if self._tiers is not None:
            self._tiers.outage(record)

    def _ground(self, member: int) -> Iterable[int]:
        return range(len(self._homes)) if self._tiers is None else self._tiers.ground(member)

    def _empties(self, at_ns: Ns, member: int, rule: str) -> None:
        """Who was there before this instant has to be gone by its end."""
        there = {request for request, since_ns in self._here[member].items() if since_ns < at_ns}
        self._emptied.append((at_ns, member, rule, there))

    def _empty_by(self, now_ns: Ns | None) -> None:
        for at_ns, member, rule, there in self._emptied:
            if now_ns is not None and at_ns >= now_ns:
                return
            left = sorted(there & self._here[member].keys())
            self._check(rule, not left, f"instance {member} at {at_ns} ns", "requests {} are still there", left)
        self._emptied.clear()

    # --- requests ----------------------------------------------------------------------------------------------

    def _arrived(self, record: Arrived) -> None:
        if self._tiers is not None:
            self._tiers.arrived(record.request, record.tier)

    def _routed(self, record: Routed) -> None:
        if self._tiers is not None and record.request not in self._member:
            self._tiers.routed(record, self._here, self._pools, self._power)
        again = record.request in self._member  # another takes it over, to decode on or from the start
        self._move(record.request, record.instance, record.at_ns)
        if not again:
            self._entered[record.request] = record.at_ns, record.instance, False

    def _reassigned(self, record: Reassigned) -> None:
        if record.action == "arrives":
            self._move(record.request, record.destination, record.at_ns)
            self._entered[record.request] = record.at_ns, record.destination, True

    def _admitted(self, record: Admitted) -> None:
        """Where a request came in is looked at now: it may have been refused, and all of that instant is told."""
        entered = self._entered.pop(record.request, None)
        if entered is not None:
            at_ns, member, moved = entered
            where = f"admitted request {record.request}"
            pools, power = self._pools[member].at(at_ns), self._power[member].at(at_ns)
            self._check(_ROLES, bool(pools & _COMPUTES), where, "came to instance {}, which was {}", member,
                        sorted(pools))  # fmt: skip
            self._check(_ROLES, "on" in power, where, "{} to instance {}, which was {}",
                        "moved" if moved else "came", member, sorted(power))  # fmt: skip
        if self._tiers is not None and record.request in self._member:
            self._tiers.admitted(record.request, self._member[record.request])

    def _landed(self, record: Landed) -> None:
        if record.stayed or record.request not in self._member:
            return
        where, member = f"landed request {record.request}", record.instance
        leaving = self._pools[member].now == "leaving" and self._homes[member] == "decode"
        decodes = leaving or bool(self._pools[member].at(record.at_ns) & _DECODES)
        on = bool(self._power[member].at(record.at_ns) & {"on", "draining"})
        self._check(_ROLES, decodes and on, where, "at instance {}, which is {} and {}", member,
                    self._pools[member].now, self._power[member].now)  # fmt: skip
        self._move(record.request, member, record.at_ns)

    def _handoff(self, record: Handoff) -> None:
        if record.action == "recompute" and record.request in self._member:
            self._move(record.request, record.destination, record.at_ns)

    def _lost(self, record: Lost) -> None:
        self._entered.pop(record.request, None)

    def _finished(self, record: Finished) -> None:
        member = self._member.pop(record.request, None)
        self._entered.pop(record.request, None)
        if member is not None:
            self._here[member].pop(record.request, None)
        if self._tiers is not None:
            self._tiers.ended(record.request)

    def _overflowed(self, record: Overflowed) -> None:
        set_ = self._tiers is not None
        self._check("tiers apart", set_, f"overflow of request {record.request}", "no tier has instances of its own")
        if self._tiers is not None:
            self._tiers.overflowed(record)

    def _move(self, request: int, member: int, at_ns: Ns) -> None:
        before = self._member.get(request)
        if before is not None:
            self._here[before].pop(request, None)
        self._member[request] = member
        self._here[member][request] = at_ns
