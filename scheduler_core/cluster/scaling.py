"""Scale-out and scale-in of replicas: when to start or drain an instance, and how long a start takes.

Pressure is what the rule looks at: requests that are not over, or busy share, per instance that is on or starting. It
must be beyond a bound for a whole window before anything happens, and between two changes of direction a cool-down
passes: one burst, or one quiet moment, starts and stops nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from scheduler_core.cluster.load import Load
from scheduler_core.types.cluster_records import Scaled
from scheduler_core.types.time import NEVER, Ns


class Power(StrEnum):
    """Where an instance is between off and on."""

    OFF = "off"
    STARTING = "starting"
    ON = "on"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class ScaleRules:
    """When to scale. ``by_busy`` looks at busy shares, else at open requests. Times in ns.

    ``least`` instances are on from the start and always. More pressure than ``up_at`` for ``window_ns`` starts as many
    as bring it back to ``up_at`` (capacity prediction by proportion), less than ``down_at`` drains one. Looks are
    ``every_ns`` apart; an opposite change waits until ``cooldown_ns`` have passed since the last one.
    """

    by_busy: bool
    least: int
    up_at: float
    down_at: float
    window_ns: Ns
    every_ns: Ns
    cooldown_ns: Ns
    start_ns: Ns


class Scaler:
    """Which instances are on. Starts drained ones first, then the first that is off; drains the least busy one."""

    def __init__(self, loads: Sequence[Load], rules: ScaleRules) -> None:
        self._loads = loads
        self._rules = rules
        self._power = [Power.ON if index < rules.least else Power.OFF for index in range(len(loads))]
        self._ready_ns: dict[int, Ns] = {}
        self._busy_before = [0] * len(loads)
        self._look_ns: Ns = rules.every_ns
        self._beyond_since: tuple[int, Ns] | None = None
        self._last: tuple[int, Ns] | None = None
        self.records = [Scaled(0, index, power.value, "from the start") for index, power in enumerate(self._power)]

    def on(self) -> tuple[int, ...]:
        """Instances that requests may be sent to."""
        return tuple(index for index, power in enumerate(self._power) if power is Power.ON)

    def serving(self) -> tuple[int, ...]:
        """Instances that have requests or may get some."""
        return tuple(index for index, power in enumerate(self._power) if power in (Power.ON, Power.DRAINING))

    def next_ns(self) -> Ns:
        """When `advance` has something to do."""
        return min(self._look_ns, min(self._ready_ns.values(), default=NEVER))

    def advance(self, now_ns: Ns) -> None:
        """Do what was due by ``now_ns``, in order of time: finish starts and drains, look at the pressure."""
        while (at_ns := self.next_ns()) <= now_ns:
            self._finish(at_ns)
            if self._look_ns <= at_ns:
                self._look_ns += self._rules.every_ns
                self._look(at_ns)
        self._finish(now_ns)

    def _finish(self, now_ns: Ns) -> None:
        for index, at in sorted(self._ready_ns.items()):
            if at <= now_ns:
                del self._ready_ns[index]
                self._set(index, Power.ON, "started", at)
        for index, power in enumerate(self._power):
            if power is Power.DRAINING and not self._loads[index].open:
                self._set(index, Power.OFF, "drained", now_ns)

    # --- decisions ---------------------------------------------------------------------------------------------

    def _look(self, now_ns: Ns) -> None:
        rules = self._rules
        counted = [index for index, power in enumerate(self._power) if power in (Power.ON, Power.STARTING)]
        pressure = self._pressure(counted)
        side = 1 if pressure > rules.up_at else -1 if pressure < rules.down_at else 0
        if side == 0:
            self._beyond_since = None
            return
        if self._beyond_since is None or self._beyond_since[0] != side:
            self._beyond_since = (side, now_ns)
        if now_ns - self._beyond_since[1] < rules.window_ns or self._cools(side, now_ns):
            return
        changed = self._up(len(counted), pressure, now_ns) if side > 0 else self._down(counted, pressure, now_ns)
        if changed:
            self._last = (side, now_ns)
            self._beyond_since = None

    def _pressure(self, counted: Sequence[int]) -> float:
        if not self._rules.by_busy:
            return sum(load.open for load in self._loads) / len(counted)
        spent = sum(load.busy_ns - before for load, before in zip(self._loads, self._busy_before, strict=True))
        self._busy_before = [load.busy_ns for load in self._loads]
        return spent / (len(counted) * self._rules.every_ns)

    def _cools(self, side: int, now_ns: Ns) -> bool:
        return self._last is not None and self._last[0] != side and now_ns - self._last[1] < self._rules.cooldown_ns

    def _up(self, counted: int, pressure: float, now_ns: Ns) -> bool:
        """Start as many as would bring the pressure down to its bound, if there are as many."""
        wanted = max(1, -int(-(pressure * counted / self._rules.up_at) // 1) - counted)
        spare = [i for i, power in enumerate(self._power) if power is Power.DRAINING]
        spare += [i for i, power in enumerate(self._power) if power is Power.OFF]
        for index in spare[:wanted]:
            reason = f"pressure {pressure:.3g} over {self._rules.up_at:g}"
            if self._power[index] is Power.DRAINING:
                self._set(index, Power.ON, reason, now_ns)
            else:
                self._set(index, Power.STARTING, reason, now_ns)
                self._ready_ns[index] = now_ns + self._rules.start_ns
        return bool(spare)

    def _down(self, counted: Sequence[int], pressure: float, now_ns: Ns) -> bool:
        on = self.on()
        if len(on) <= self._rules.least or len(counted) > len(on):
            return False
        index = min(on, key=lambda item: (self._loads[item].open, -item))
        self._set(index, Power.DRAINING, f"pressure {pressure:.3g} under {self._rules.down_at:g}", now_ns)
        return True

    def _set(self, index: int, power: Power, reason: str, now_ns: Ns) -> None:
        self._power[index] = power
        self.records.append(Scaled(now_ns, index, power.value, reason))
