"""How busy the instances of a run were: idle time between steps, and totals by instance and by pool."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler_core.evidence.schema import PoolSummary
from scheduler_core.evidence.sweep import StepTime
from scheduler_core.types.reasons import Defer
from scheduler_core.types.records import RunStarted
from scheduler_core.types.time import Ns

IDLE_HOST = "host"
_IDLE_CAUSES = {
    Defer.NO_BLOCKS.value: "memory",
    Defer.BATCH_RUNNING.value: "policy",
    Defer.WAITING_FOR_BATCH.value: "policy",
    Defer.BATCH_FULL.value: "policy",
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


@dataclass(frozen=True)
class InstanceUse:
    """The totals of all instances, with what each of them has."""

    started: RunStarted
    totals: Mapping[int, InstanceTotals]
    span_ns: Ns

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
        """Compute time of ``instances`` / their time."""
        time_ns = len(instances) * self.span_ns
        return sum(self._total(index).compute_ns for index in instances) / time_ns if time_ns else None

    def pools(self) -> dict[str, PoolSummary]:
        """One summary per group of a cluster; empty for one instance."""
        groups: dict[str, list[int]] = {}
        for index, described in enumerate(self.started.instances):
            groups.setdefault(described["group"], []).append(index)
        return {name: self._pool(instances) for name, instances in groups.items()}

    def _pool(self, instances: list[int]) -> PoolSummary:
        busy = [self._total(index).compute_ns / self.span_ns if self.span_ns else 0.0 for index in instances]
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
