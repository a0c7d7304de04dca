"""What the metrics of a run are computed from: request columns, pooled gaps, and step totals."""

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from scheduler_core.evidence.columns import MISSING, Ints
from scheduler_core.evidence.fold.drafts import DRAFT_INTS, DraftTotals
from scheduler_core.evidence.fold.handoffs import HandoffTotals
from scheduler_core.evidence.fold.instances import InstanceTotals, InstanceUse, OutageTotals, PoolTotals, PowerTotals
from scheduler_core.evidence.fold.layout import STEP_INTS, TakesRow
from scheduler_core.evidence.fold.spread import SPREAD_INTS, SpreadTotals
from scheduler_core.evidence.tables.order_statistics import OrderStatistics
from scheduler_core.evidence.tables.requests import Floats, MadeOnce, Requests, most_held
from scheduler_core.evidence.tables.slo import Attainment, attainment
from scheduler_core.evidence.tables.tables import Mask, open_table
from scheduler_core.evidence.window import Window
from scheduler_core.spec.workload import Tier
from scheduler_core.types.quantile import quantile
from scheduler_core.types.records import RunStarted
from scheduler_core.types.time import NS_PER_MS, Ns

# A stream has stalled when nothing came for a second, and for ten times what is usual in the run.
STALL_MS = 1000.0
STALL_GAPS = 10

GapSource: TypeAlias = Callable[[], Iterable[tuple[Ints, Floats]]]
ChunkSource: TypeAlias = Callable[[], Iterable[tuple[Ints, Floats, Ints]]]
"""Columns (request, wait since the chunk before in ms, tokens) of all chunks, batch by batch; NaN for a first one, 0
tokens where they were not counted."""

_STEP = {name: place for place, name in enumerate(STEP_INTS)}
_SUMMED = (
    "compute_ns", "work_ns", "path_ns", "prefill_tokens", "decode_tokens", "recompute_tokens", "prefill_requests",
    "decode_requests", "stalled", "budget", "kv_used", "kv_cached", "idle_ns", "idle_empty_ns", "copied_out",
    "copied_in", "evicted_ahead", "copied_on_write",
)  # fmt: skip
_DRAFTS = slice(STEP_INTS.index(DRAFT_INTS[0]), STEP_INTS.index(DRAFT_INTS[-1]) + 1)
_SPREAD = slice(STEP_INTS.index(SPREAD_INTS[0]), STEP_INTS.index(SPREAD_INTS[-1]) + 1)
_PEAKS = ("kv_used", "waiting", "running", "paused", "host_used")

_summed = itemgetter(*(_STEP[name] for name in _SUMMED))
_peaked = itemgetter(*(_STEP[name] for name in _PEAKS))
_tokens = itemgetter(*(_STEP[name] for name in ("prefill_tokens", "decode_tokens", "recompute_tokens")))


@dataclass
class StepTotals:
    """Sums and peaks over the steps of the measured window; hands each row on to ``table``.

    ``window_open`` tells whether the window has opened; steps before it are stored, not summed. ``spans`` are the ns of
    each step from planning to its tokens.
    """

    table: TakesRow
    window_open: Callable[[], bool]
    steps: int = 0
    sums: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_SUMMED, 0))
    peaks: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*_PEAKS, "tokens"), 0))
    idle_by_cause: dict[int, Ns] = field(default_factory=dict)
    by_instance: defaultdict[int, InstanceTotals] = field(default_factory=lambda: defaultdict(InstanceTotals))
    spread: SpreadTotals = field(default_factory=SpreadTotals)
    drafts: DraftTotals = field(default_factory=DraftTotals)
    spans: "array[int]" = field(default_factory=lambda: array("q"))

    def append(self, *values: int) -> None:
        """Count a step and hand it on."""
        self.table.append(*values)
        if not self.window_open():
            return
        self.steps += 1
        sums, peaks = self.sums, self.peaks
        for name, value in zip(_SUMMED, _summed(values), strict=True):
            if value:  # most of what steps may have is absent from most of them
                sums[name] += value
        for name, value in zip(_PEAKS, _peaked(values), strict=True):
            if value > peaks[name]:
                peaks[name] = value
        tokens = sum(_tokens(values))
        if tokens > peaks["tokens"]:
            peaks["tokens"] = tokens
        self.by_instance[values[_STEP["instance"]]].add(values[_STEP["compute_ns"]], values[_STEP["kv_used"]], tokens)
        self.drafts.add(values[_DRAFTS])
        self.spread.add(values[_SPREAD])
        self.spans.append(values[_STEP["available_ns"]] - values[_STEP["planned_ns"]])
        cause = values[_STEP["idle_cause"]]
        if cause != MISSING:
            self.idle_by_cause[cause] = self.idle_by_cause.get(cause, 0) + values[_STEP["idle_ns"]]


def gaps_of_file(path: Path) -> Iterable[tuple[Ints, Floats]]:
    """(request, gap in ms) columns of a gaps table on disk, batch by batch."""
    for batch in open_table(path).iter_batches(columns=["request", "gap_ms"]):
        yield batch.column("request").to_numpy(), batch.column("gap_ms").to_numpy()


def chunks_of_file(path: Path) -> Iterable[tuple[Ints, Floats, Ints]]:
    """(request, wait since the chunk before in ms, tokens) columns of a chunks table on disk, batch by batch."""
    for batch in open_table(path).iter_batches(columns=["request", "gap_ms", "tokens"]):
        requests, gaps, tokens = (batch.column(place) for place in range(3))
        yield requests.to_numpy(), gaps.to_numpy(zero_copy_only=False), tokens.to_numpy()


def devices_of(started: RunStarted) -> int:
    """Devices that serve a run: those of its instances here, those of a server's sources elsewhere."""
    server = started.target.get("server")
    if server:
        return sum(int(source.get("devices", 1)) for source in instances_of(server)) or 1
    return sum(int(one.get("devices", 1)) for one in started.instances) or started.devices


@dataclass(frozen=True)
class RunTables:
    """One run, ready for the metric registry; ``gaps`` yields (request, gap in ms) columns, batch by batch.

    ``chunks`` are those of streams; None where each token comes alone.
    ``alone`` gives the calibrated time of a request (prompt tokens, output tokens) with the device to itself.
    """

    started: RunStarted
    requests: Requests
    window: Window
    steps: StepTotals
    tiers: Mapping[str, Tier]
    gaps: GapSource
    load_ns: Ns | None
    loads: int
    device_bytes: int | None
    handoffs: HandoffTotals = field(default_factory=HandoffTotals)
    power: PowerTotals = field(default_factory=PowerTotals)
    pools: PoolTotals = field(default_factory=PoolTotals)
    outages: OutageTotals = field(default_factory=OutageTotals)
    alone: Callable[[int, int], Ns] | None = None
    chunks: ChunkSource | None = None

    @property
    def modelled(self) -> bool:
        """Whether time is simulated, so that unattributed time must be exactly 0."""
        return self.started.source == "modelled"

    @property
    def devices(self) -> int:
        """Devices that the run held while it lasted."""
        return devices_of(self.started)

    @property
    def device_s(self) -> float:
        """Device time held in the measured window, in seconds: what is paid for."""
        if not self.power.scales:
            return self.devices * self.window_s
        return self.use.device_ns / 1e9

    @property
    def window_s(self) -> float:
        """Length of the measured window in seconds."""
        return self.window.span_ns / 1e9

    @property
    def use(self) -> InstanceUse:
        """How busy and full the instances were."""
        return InstanceUse(
            self.started, self.steps.by_instance, self.power, self.window.start_ns or 0, self.window.end_ns
        )

    def sorted_ms(self, name: str) -> Floats:
        """Ascending values of a request field over warm finished measured requests, absences left out."""
        return self._sorted[name]

    def sorted_censored_ms(self, name: str) -> Floats:
        """As `sorted_ms`, every warm measured request that did not finish being infinitely late."""
        late = int((self.requests.counted & ~self.requests.finished).sum())
        return np.concatenate([self.sorted_ms(name), np.full(late, np.inf)])

    @cached_property
    def attainment(self) -> Attainment:
        """Which requests met the objectives of their tier."""
        return attainment(self.requests, self.tiers)

    @cached_property
    def slowdown(self) -> Floats | None:
        """E2E / E2E alone by request, NaN where it did not finish; None without a calibration."""
        if self.alone is None:
            return None
        requests, alone = self.requests, self.alone
        found = np.full(len(requests), np.nan)
        rows = np.flatnonzero(requests.finished)
        prompts, outputs = (requests.rows[name][rows] for name in ("prompt_tokens", "output_tokens"))
        base = int(outputs.max(initial=0)) + 1
        shapes, shape = np.unique(prompts * base + outputs, return_inverse=True)
        alone_ms = np.array([alone(*divmod(each, base)) for each in shapes.tolist()])[shape] / NS_PER_MS
        found[rows] = requests.columns["e2e_ms"].values[rows] / np.maximum(alone_ms, 1 / NS_PER_MS)
        return found

    @cached_property
    def gap_ms(self) -> OrderStatistics:
        """Ascending gaps between tokens, pooled over warm finished measured requests."""
        wanted = by_request(self.requests.rows["request"], self.requests.warm_finished)
        return OrderStatistics(lambda: (gap_ms[wanted[request]] for request, gap_ms in self.gaps()))

    @cached_property
    def chunk_gap_ms(self) -> OrderStatistics:
        """Ascending waits between stream chunks, pooled over warm finished measured requests."""
        chunks = self.chunks
        if chunks is None:
            return self.gap_ms
        wanted = by_request(self.requests.rows["request"], self.requests.warm_finished)

        def waits() -> Iterator[Floats]:
            for request, gap_ms, _ in chunks():
                taken = gap_ms[wanted[request]]
                yield taken[~np.isnan(taken)]

        return OrderStatistics(waits)

    @property
    def first_chunk_tokens(self) -> Ints:
        """Tokens of each request's first chunk; 0 where they were not counted, `MISSING` where no chunk was kept."""
        if self.chunks is None:
            return np.ones(len(self.requests), dtype=np.int64)
        rows = self.requests.rows["request"]
        found = np.full(int(rows.max(initial=0)) + 1, MISSING, dtype=np.int64)
        for request, gap_ms, tokens in self.chunks():
            first = np.isnan(gap_ms)
            found[request[first]] = tokens[first]
        return found[rows]

    @cached_property
    def stalled(self) -> Mask:
        """Warm finished measured requests that once waited over `STALL_MS` and over `STALL_GAPS` usual gaps."""
        gaps, longest = self.gap_ms, self.requests.columns["longest_gap_ms"]
        limit = max(STALL_MS, STALL_GAPS * quantile(gaps, 0.5)) if len(gaps) else STALL_MS
        return self.requests.warm_finished & longest.present & (longest.values > limit)

    @cached_property
    def _sorted(self) -> Mapping[str, Floats]:
        requests = self.requests

        def make(name: str) -> Floats:
            column = requests.columns[name]
            return np.sort(column.values[requests.warm_finished & column.present])

        return MadeOnce(tuple(requests.columns), make, most=most_held(len(requests)))


def by_request(requests: Ints, mask: Mask) -> Mask:
    """Mask by request index instead of by row."""
    size = int(requests.max()) + 1 if len(requests) else 1
    found = np.zeros(size, dtype=np.bool_)
    found[requests[mask]] = True
    return found


def instances_of(server: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Metric sources of a server target that are instances, not monitors of devices."""
    return [source for source in server.get("sources") or [] if source.get("role") != "devices"]
