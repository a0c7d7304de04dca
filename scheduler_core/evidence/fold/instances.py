"""How busy the instances of a run were: idle time between steps, and totals by instance and by pool."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scheduler_core.evidence.fold.sweep import StepTime
from scheduler_core.evidence.schema import PoolSummary
from scheduler_core.types.cluster_records import Lost, OutageStage, Overflowed, PoolChanged, Scaled
from scheduler_core.types.reasons import Defer
from scheduler_core.types.records import RunStarted
from scheduler_core.types.time import Ns

IDLE_HOST = "host"
_IDLE_CAUSES = {
    Defer.NO_BLOCKS.value: "memory",
    Defer.BATCH_RUNNING.value: "policy",
    Defer.WAITING_FOR_BATCH.value: "policy",
    Defer.BATCH_FULL.value: "policy",
    Defer.PROMPT_PENDING.value: "policy",
}


@dataclass(slots=True)
class Idleness:
    """What an instance waited for between its steps. ``open`` requests are there, ``resident`` ones hold blocks.

    ``reason`` is why the head of its queue was passed over since the last step.
    """

    open: int = 0
    resident: int = 0
    reason: str = ""
    _open_since: Ns | None = None
    _compute_end: Ns | None = None

    def enter(self, at_ns: Ns) -> None:
        """A request came to the instance."""
        if not self.open:
            self._open_since = at_ns
        self.open += 1

    def leave(self) -> None:
        """A request is over, or went elsewhere."""
        self.open -= 1
        if not self.open:
            self._open_since = None

    def before(self, shape: StepTime) -> tuple[Ns, Ns, str]:
        """(idle with runnable work, idle with nothing runnable, cause) between the last compute and this one."""
        end, begin = shape.compute_start_ns, self._compute_end
        if begin is None:
            begin = end if self._open_since is None else self._open_since
        self._compute_end = max(shape.compute_end_ns, begin)
        if end <= begin:
            return 0, 0, ""
        since = end if self._open_since is None else min(max(self._open_since, begin), end)
        cause = IDLE_HOST if self.resident else _IDLE_CAUSES.get(self.reason, IDLE_HOST)
        return end - since, since - begin, cause if end > since else ""


@dataclass(slots=True)
class InstanceTotals:
    """Sums and peaks over the steps of one instance in the measured window."""

    steps: int = 0
    compute_ns: Ns = 0
    kv_used: int = 0
    kv_peak: int = 0
    tokens: int = 0

    def add(self, compute_ns: Ns, kv_used: int, tokens: int) -> None:
        """Count one step."""
        self.steps += 1
        self.compute_ns += compute_ns
        self.kv_used += kv_used
        self.kv_peak = max(self.kv_peak, kv_used)
        self.tokens += tokens


@dataclass
class PowerTotals:
    """When instances were held: from the beginning of a start to the end of a drain. Empty where nothing scales.

    ``start_ns`` sums the ``started`` ones, ``reversals`` counts starts that followed a drain and the reverse.
    """

    starts: int = 0
    started: int = 0
    start_ns: Ns = 0
    drains: int = 0
    reversals: int = 0
    _began: dict[int, Ns] = field(default_factory=dict)
    _spans: list[tuple[Ns, Ns]] = field(default_factory=list)
    _held: dict[int, list[tuple[Ns, Ns]]] = field(default_factory=dict)
    _since: dict[int, Ns] = field(default_factory=dict)
    _direction: str = ""

    def take(self, record: Scaled) -> None:
        """An instance changed its power."""
        index, power = record.instance, record.power
        if index not in self._held:
            self._held[index] = []
            if record.at_ns:  # it was on all the time in a pool that does not scale
                self._since[index] = 0
        if power in ("starting", "draining"):
            self.reversals += bool(self._direction) and self._direction != power
            self._direction = power
            self.drains += power == "draining"
        if power == "starting":
            self.starts += 1
            self._began[index] = record.at_ns
        elif power == "on" and index in self._began:
            self.started += 1
            began = self._began.pop(index)
            self.start_ns += record.at_ns - began
            self._spans.append((began, record.at_ns))
        if power == "off":
            since = self._since.pop(index, None)
            if since is not None:
                self._held[index].append((since, record.at_ns))
        else:
            self._since.setdefault(index, record.at_ns)

    def spans(self, end_ns: Ns) -> list[tuple[Ns, Ns]]:
        """When instances were starting, each from the decision to its being on, or to ``end_ns``."""
        return [*self._spans, *((began, end_ns) for began in self._began.values())]

    @property
    def scales(self) -> bool:
        """Whether anything was said of power at all."""
        return bool(self._held)

    def held_ns(self, instance: int, start_ns: Ns, end_ns: Ns) -> Ns:
        """How long an instance was held within ``[start_ns, end_ns)``; all of it where nothing is said of its power."""
        if instance not in self._held:
            return end_ns - start_ns
        spans = [*self._held.get(instance, ())]
        if instance in self._since:
            spans.append((self._since[instance], end_ns))
        return sum(max(0, min(end, end_ns) - max(start, start_ns)) for start, end in spans)


@dataclass
class PoolTotals:
    """Instances that changed their pool.

    They were ``lent`` to do another's work as well, ``lent_ns`` in sum until they were home, or ``moved`` from prefill
    to decode or back, ``move_ns`` in sum from the decision on; ``reversals`` are moves that followed one the other way.
    """

    changes: int = 0
    lent: int = 0
    returned: int = 0
    lent_ns: Ns = 0
    moved: int = 0
    reversals: int = 0
    move_ns: Ns = 0
    _overflowed: set[int] = field(default_factory=set)
    _leaving_since: dict[int, Ns] = field(default_factory=dict)
    _lent_since: dict[int, Ns] = field(default_factory=dict)
    _towards: str = ""

    def take(self, record: PoolChanged) -> None:
        """An instance changed its pool."""
        self.changes += 1
        since = self._lent_since.pop(record.instance, None)
        if record.pool == "leaving":
            self._leaving_since[record.instance] = record.at_ns
        elif record.pool == "mixed":
            self.lent += 1
            self._lent_since[record.instance] = record.at_ns
        elif since is not None:
            self.returned += 1
            self.lent_ns += record.at_ns - since
        else:
            self.moved += 1
            self.move_ns += record.at_ns - self._leaving_since.pop(record.instance, record.at_ns)
            self.reversals += self._towards not in ("", record.pool)
            self._towards = record.pool

    def overflowed(self, record: Overflowed) -> None:
        """A request went beyond its tier's own instances, maybe once more."""
        self._overflowed.add(record.request)

    @property
    def overflows(self) -> int:
        """Requests that went beyond their tier's own instances."""
        return len(self._overflowed)


@dataclass
class OutageTotals:
    """Deaths of instances and what became of the requests on them.

    An instance has recovered when every request that was on it has got a token again, or is over.
    """

    deaths: int = 0
    lost: int = 0
    tokens_lost: int = 0
    recovered: int = 0
    recovery_ns: Ns = 0
    _died: dict[int, Ns] = field(default_factory=dict)
    _missed: dict[int, set[int]] = field(default_factory=dict)
    waiting: dict[int, int] = field(default_factory=dict)

    def take(self, record: OutageStage) -> None:
        """An instance died or is back."""
        if record.what == "died":
            self.deaths += 1
            self._died[record.instance] = record.at_ns
            self._missed[record.instance] = set()

    def take_lost(self, record: Lost) -> None:
        """A request was on an instance that died."""
        self.lost += 1
        self.tokens_lost += record.tokens
        self.served(record.request, record.at_ns)  # it may have been waiting since an earlier death
        self.waiting[record.request] = record.instance
        self._missed[record.instance].add(record.request)

    def served(self, request: int, at_ns: Ns) -> None:
        """A request that was lost got a token again, or is over."""
        instance = self.waiting.pop(request, None)
        if instance is None:
            return
        self._missed[instance].discard(request)
        if not self._missed[instance]:
            self.recovered += 1
            self.recovery_ns += at_ns - self._died[instance]


@dataclass(frozen=True)
class InstanceUse:
    """The totals of all instances, with what each of them has."""

    started: RunStarted
    totals: Mapping[int, InstanceTotals]
    power: PowerTotals
    start_ns: Ns
    end_ns: Ns

    @property
    def count(self) -> int:
        """Instances of the run."""
        return max(1, len(self.started.instances))

    @property
    def kv_peak_share(self) -> float | None:
        """Largest used share of any instance's pool."""
        shares = [total.kv_peak / blocks for index, total in self.totals.items() if (blocks := self._blocks(index))]
        return max(shares, default=None)

    @property
    def kv_used_mean_share(self) -> float | None:
        """Used share of a pool, mean over all steps."""
        had = sum(total.steps * self._blocks(index) for index, total in self.totals.items())
        return sum(total.kv_used for total in self.totals.values()) / had if had else None

    def utilisation(self, instances: Sequence[int]) -> float | None:
        """Compute time of ``instances`` / the time that they were held."""
        time_ns = self.held_ns(instances)
        return sum(self._total(index).compute_ns for index in instances) / time_ns if time_ns else None

    def held_ns(self, instances: Sequence[int]) -> Ns:
        """Time for which ``instances`` were held in the window, summed."""
        return sum(self.power.held_ns(index, self.start_ns, self.end_ns) for index in instances)

    @property
    def device_ns(self) -> Ns:
        """Time for which devices were held in the window, each counting for itself: what is paid for."""
        described = self.started.instances
        return sum(
            int(described[index].get("devices", 1) if described else self.started.devices) * self.held_ns([index])
            for index in range(self.count)
        )

    def pools(self) -> dict[str, PoolSummary]:
        """One summary per group of a cluster; empty for one instance."""
        groups: dict[str, list[int]] = {}
        for index, described in enumerate(self.started.instances):
            groups.setdefault(described["group"], []).append(index)
        return {name: self._pool(instances) for name, instances in groups.items()}

    def _pool(self, instances: list[int]) -> PoolSummary:
        busy = [self.utilisation([index]) or 0.0 for index in instances]
        return PoolSummary(
            instances=len(instances),
            steps=sum(self._total(index).steps for index in instances),
            tokens=sum(self._total(index).tokens for index in instances),
            utilisation=self.utilisation(instances),
            least_busy=min(busy),
            most_busy=max(busy),
            kv_peak_share=max(self._total(index).kv_peak / max(1, self._blocks(index)) for index in instances),
        )

    def _total(self, index: int) -> InstanceTotals:
        return self.totals.get(index, _NOTHING)

    def _blocks(self, index: int) -> int:
        described = self.started.instances
        return int(described[index]["kv_blocks"]) if index < len(described) else self.started.kv_blocks


_NOTHING = InstanceTotals()
