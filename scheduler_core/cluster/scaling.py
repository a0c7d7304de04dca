"""Scale-out and scale-in of a pool: when to start or drain an instance, and how long a start takes.

Pressure is what the rule looks at, per instance that is on or starting. It must be beyond a bound for a whole window
before anything happens, and between two changes of direction a cool-down passes: one burst, or one quiet moment, starts
and stops nothing.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from scheduler_core.cluster.load import Load
from scheduler_core.cluster.router import Estimate
from scheduler_core.cluster.sustained import Sustained
from scheduler_core.types.cluster_records import ColdStartStage, Scaled
from scheduler_core.types.records import Record
from scheduler_core.types.time import NEVER, NS_PER_MS, Ns


class Power(StrEnum):
    """Where an instance is between off and on."""

    OFF = "off"
    STARTING = "starting"
    ON = "on"
    DRAINING = "draining"


class Pressure(StrEnum):
    """What is looked at: requests that are not over, busy shares, or how long waiting prompts are estimated to take."""

    QUEUE = "queue"
    BUSY = "busy"
    WAIT = "wait"


class Stage(NamedTuple):
    """A part of a cold start and how long it takes."""

    name: str
    takes_ns: Ns


@dataclass(frozen=True, slots=True)
class ScaleRules:
    """When to scale by ``by``; a wait is in ms. Times in ns.

    ``least`` instances are on from the start and always. More pressure than ``up_at`` for ``window_ns`` starts as many
    as bring it back to ``up_at`` (capacity prediction by proportion), less than ``down_at`` drains one. Looks are
    ``every_ns`` apart; an opposite change waits until ``cooldown_ns`` have passed since the last one. A start goes
    through ``stages``, one after the other.
    """

    by: Pressure
    least: int
    up_at: float
    down_at: float
    window_ns: Ns
    every_ns: Ns
    cooldown_ns: Ns
    stages: Sequence[Stage]


@dataclass(frozen=True, slots=True)
class Yard:
    """What a scaler works on: ``members`` tells its instances, which others may give to it or take from it while they
    are on; ``power``, ``loads`` and whether one is ``idle`` are by index of all.

    ``outside`` counts requests that wait for an instance of the pool, but are not with one yet.
    """

    members: Callable[[], Sequence[int]]
    power: dict[int, Power]
    loads: Sequence[Load]
    idle: Callable[[int], bool]
    estimate: Estimate
    outside: Callable[[], int]


class Scaler:
    """Which instances are on. Starts drained ones first, then the first that is off; drains the least busy one."""

    def __init__(self, yard: Yard, rules: ScaleRules) -> None:
        self._yard = yard
        self._rules = rules
        members, self._power = yard.members(), yard.power
        self._power.update({m: Power.ON if place < rules.least else Power.OFF for place, m in enumerate(members)})
        self._starting: dict[int, deque[tuple[Ns, Stage | None]]] = {}
        """When each stage of who starts begins; None is its end."""
        self._busy_before = 0
        self._look_ns: Ns = rules.every_ns
        self._sustained = Sustained(rules.window_ns, rules.cooldown_ns)
        self.records: list[Record] = [
            Scaled(0, member, self._power[member].value, "from the start") for member in members
        ]

    def those(self, *powers: Power) -> tuple[int, ...]:
        """Instances that are one of ``powers``, ascending."""
        return tuple(index for index in self._yard.members() if self._power[index] in powers)

    def next_ns(self) -> Ns:
        """When `advance` has something to do."""
        return min(self._look_ns, min((due[0][0] for due in self._starting.values()), default=NEVER))

    def advance(self, now_ns: Ns) -> None:
        """Do what was due by ``now_ns``, in order of time: finish starts and drains, look at the pressure."""
        while (at_ns := self.next_ns()) <= now_ns:
            self._finish(at_ns)
            if self._look_ns <= at_ns:
                self._look_ns += self._rules.every_ns
                self._look(at_ns)
        self._finish(now_ns)

    def _finish(self, now_ns: Ns) -> None:
        for index in sorted(self._starting):
            self._go_on(index, now_ns)
        for index in self.those(Power.DRAINING):
            if self._yard.idle(index):
                self._set(index, Power.OFF, "drained", now_ns)

    # --- decisions ---------------------------------------------------------------------------------------------

    def _look(self, now_ns: Ns) -> None:
        rules = self._rules
        counted = self.those(Power.ON, Power.STARTING)
        pressure = self._pressure(len(counted))
        side = 1 if pressure > rules.up_at else -1 if pressure < rules.down_at else 0
        if not self._sustained.due(side, now_ns):
            return
        changed = self._up(len(counted), pressure, now_ns) if side > 0 else self._down(counted, pressure, now_ns)
        if changed:
            self._sustained.done(side, now_ns)

    def _pressure(self, counted: int) -> float:
        yard = self._yard
        if self._rules.by is Pressure.QUEUE:
            return (sum(yard.loads[index].open for index in yard.members()) + yard.outside()) / counted
        if self._rules.by is Pressure.WAIT:
            waits = [yard.estimate(i, tokens) for i in yard.members() if (tokens := yard.loads[i].prefill_tokens)]
            return sum(waits) / counted / NS_PER_MS
        busy_ns = sum(yard.loads[index].busy_ns for index in yard.members())
        spent, self._busy_before = busy_ns - self._busy_before, busy_ns
        return spent / (counted * self._rules.every_ns)

    def _up(self, counted: int, pressure: float, now_ns: Ns) -> bool:
        """Start as many as would bring the pressure down to its bound, if there are as many."""
        wanted = max(1, -int(-(pressure * counted / self._rules.up_at) // 1) - counted)
        spare = self.those(Power.DRAINING) + self.those(Power.OFF)
        for index in spare[:wanted]:
            reason = f"pressure {pressure:.3g} over {self._rules.up_at:g}"
            if self._power[index] is Power.DRAINING:
                self._set(index, Power.ON, reason, now_ns)
            else:
                self._set(index, Power.STARTING, reason, now_ns)
                self._start(index, now_ns)
        return bool(spare)

    def _start(self, index: int, now_ns: Ns) -> None:
        due: deque[tuple[Ns, Stage | None]] = deque()
        at_ns = now_ns
        for stage in self._rules.stages:
            due.append((at_ns, stage))
            at_ns += stage.takes_ns
        due.append((at_ns, None))
        self._starting[index] = due
        self._go_on(index, now_ns)

    def _go_on(self, index: int, now_ns: Ns) -> None:
        """Begin the stages of a start that are due; after the last one it is on."""
        due = self._starting[index]
        while due and due[0][0] <= now_ns:
            at_ns, stage = due.popleft()
            if stage is None:
                del self._starting[index]
                self._set(index, Power.ON, "started", at_ns)
            else:
                self.records.append(ColdStartStage(at_ns, index, stage.name, at_ns + stage.takes_ns))

    def _down(self, counted: Sequence[int], pressure: float, now_ns: Ns) -> bool:
        on = self.those(Power.ON)
        if len(on) <= self._rules.least or len(counted) > len(on):
            return False
        index = min(on, key=lambda item: (self._yard.loads[item].open, -item))
        self._set(index, Power.DRAINING, f"pressure {pressure:.3g} under {self._rules.down_at:g}", now_ns)
        return True

    def _set(self, index: int, power: Power, reason: str, now_ns: Ns) -> None:
        self._power[index] = power
        self.records.append(Scaled(now_ns, index, power.value, reason))
