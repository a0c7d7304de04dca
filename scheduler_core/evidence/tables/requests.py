"""The requests of a run as columns, with every derived figure computed in one place."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Self, TypeVar

import numpy as np
import numpy.typing as npt

from scheduler_core.evidence.columns import MISSING, ColumnsPart, Ints
from scheduler_core.evidence.fold.layout import SEGMENT_COLUMNS, Labels
from scheduler_core.evidence.schema import Absence
from scheduler_core.evidence.tables.tables import Mask
from scheduler_core.types.intervals import IntervalClass
from scheduler_core.types.reasons import Outcome
from scheduler_core.types.time import NS_PER_MS

Floats = npt.NDArray[np.float64]
T = TypeVar("T")

HELD_VALUES = 1_000_000  # derived values that are held at a time; beyond, columns are made again when asked for


@dataclass(frozen=True)
class Column:
    """Values in ``unit`` with the masks under which they are absent, the first that holds being the reason."""

    values: Floats
    unit: str
    absent: tuple[tuple[Absence, Mask], ...] = ()

    @cached_property
    def present(self) -> Mask:
        """Where there is a value."""
        present = np.ones(len(self.values), dtype=np.bool_)
        for _, mask in self.absent:
            present &= ~mask
        return present


# Fields that a single instance without separated pools, collectives or a load client cannot make non-zero.
NOT_APPLICABLE = {
    "send_delay_ms": "ms",
    "connect_ms": "ms",
    "reserve_wait_ms": "ms",
    "decode_queue_ms": "ms",
    "handoff_ms": "ms",
    "transfer_bytes": "bytes",
    "network_wait_ms": "ms",
    "communication_ms": "ms",
    "communication_sum_ms": "ms",
    "exposed_comm_ms": "ms",
    "hidden_comm_ms": "ms",
    "critical_comm_ms": "ms",
}

# What a request in a cluster may wait for beside that; ``critical_comm_ms`` is its handoff on the link.
_BETWEEN_INSTANCES = {
    "reserve_wait_ms": IntervalClass.RESERVE_WAIT,
    "network_wait_ms": IntervalClass.NETWORK_WAIT,
    "critical_comm_ms": IntervalClass.HANDOFF,
    "decode_queue_ms": IntervalClass.DECODE_QUEUE,
}

_SEGMENT_FIELDS = {
    "queue_wait_ms": IntervalClass.QUEUE,
    "requeue_wait_ms": "requeue",
    "stalled_ms": IntervalClass.STALLED,
    "input_prepare_ms": IntervalClass.INPUT_PREPARE,
    "input_transfer_ms": IntervalClass.INPUT_TRANSFER,
    "prefill_ms": IntervalClass.COMPUTE_PREFILL,
    "decode_ms": IntervalClass.COMPUTE_DECODE,
    "recompute_ms": IntervalClass.RECOMPUTE,
    "swap_ms": IntervalClass.SWAP,
    "paused_ms": IntervalClass.PAUSED,
    "preemption_recompute_ms": IntervalClass.RECOMPUTE,
    "output_transfer_ms": IntervalClass.OUTPUT_TRANSFER,
    "stream_output_ms": IntervalClass.STREAM_OUTPUT,
    "collective_ms": IntervalClass.COMMUNICATION,
    "sync_wait_ms": IntervalClass.SYNC_WAIT,
    "model_load_wait_ms": IntervalClass.MODEL_LOAD,
    "host_gap_ms": IntervalClass.HOST_GAP,
    "unattributed_ms": "unattributed",
}


@dataclass(frozen=True)
class Requests:
    """All requests that arrived, ordered by index; ``rows`` are the integer columns of the fold.

    ``degraded_quality`` is the user's own score of answers to degraded requests, None where there is none.
    ``instances`` is how many served them.
    """

    rows: Mapping[str, Ints]
    labels: Labels
    measured_from: int
    degraded_quality: float | None = None
    instances: int = 1

    def __len__(self) -> int:
        return len(self.rows["request"])

    @cached_property
    def finished(self) -> Mask:
        """Ended as finished, with a token to show for it."""
        done = self.rows["outcome"] == self.labels.outcomes.get(Outcome.FINISHED)
        return np.asarray(done & (self.rows["output_tokens"] > 0), dtype=np.bool_)

    @cached_property
    def measured(self) -> Mask:
        """Scheduled inside the measured window."""
        return np.asarray(self.rows["request"] >= self.measured_from, dtype=np.bool_)

    @cached_property
    def degraded(self) -> Mask:
        """Taken in as less than was asked for."""
        return np.asarray(self.rows["degraded"] != MISSING, dtype=np.bool_)

    @cached_property
    def cold(self) -> Mask:
        """First served before the instance was warm: kept apart from every latency figure."""
        return self.rows["cold"].astype(np.bool_)

    @cached_property
    def counted(self) -> Mask:
        """Measured and warm: the population of censored figures."""
        return self.measured & ~self.cold

    @cached_property
    def warm_finished(self) -> Mask:
        """Measured, warm and finished: the population of latency figures."""
        return self.counted & self.finished

    @cached_property
    def columns(self) -> Mapping[str, Column]:
        """Every derived field by name, each made when it is asked for."""
        makers = {**self._latencies(), **self._segments(), **self._sizes()}
        for name, unit in NOT_APPLICABLE.items():  # unless a target that has it says so
            makers.setdefault(name, partial(self._never, unit, Absence.NOT_APPLICABLE))
        makers["input_transfer_bytes"] = partial(self._never, "bytes", Absence.NOT_MEASURED)
        return MadeOnce(tuple(makers), lambda name: makers[name](), most=most_held(len(self)))

    def part(self, start: int, stop: int) -> Self:
        """The requests of rows ``[start, stop)`` by themselves."""
        return replace(self, rows=ColumnsPart(self.rows, start, stop))

    def _never(self, unit: str, absence: Absence) -> Column:
        """A column without a single value."""
        return Column(
            np.broadcast_to(np.float64(0), len(self)), unit, ((absence, np.broadcast_to(np.True_, len(self))),)
        )

    def segment_sum_ns(self) -> Ints:
        """Sum of all segments, unattributed included."""
        total = np.zeros(len(self), dtype=np.int64)
        for name in SEGMENT_COLUMNS:
            total += self.rows[name]
        return total

    def lengths_digest(self) -> str:
        """Digest over (request, output tokens) of finished requests."""
        digest = hashlib.blake2b(digest_size=16)
        for name in ("request", "output_tokens"):
            digest.update(np.ascontiguousarray(self.rows[name][self.finished], dtype="<i8").data)
        return digest.hexdigest()

    def finished_tokens(self) -> int:
        """Output tokens of finished requests."""
        return int(self.rows["output_tokens"][self.finished].sum())

    def by_outcome(self, among: Mask | None = None) -> dict[str, int]:
        """Requests (of ``among``) by outcome, each outcome of the contract."""
        rows = self.rows["outcome"] if among is None else self.rows["outcome"][among]
        return {outcome.value: int((rows == self.labels.outcomes.get(outcome)).sum()) for outcome in Outcome}

    def reasons(self) -> dict[str, int]:
        """Requests that did not finish, counted by ``outcome: stage: reason``."""
        labels, rows = self.labels, self.rows
        ended = ~self.finished
        keys = np.stack([rows[name][ended] for name in ("outcome", "stage", "reason")])
        found, counts = np.unique(keys, axis=1, return_counts=True)
        named = (labels.outcomes.values, labels.stages.values, labels.reasons.values)
        return {
            ": ".join(values[code] for values, code in zip(named, codes, strict=True) if values[code]): int(count)
            for codes, count in zip(found.T, counts, strict=True)
        }

    def longest_gap_causes(self, among: Mask) -> dict[str, int]:
        """Requests of ``among`` by cause of their longest gap."""
        causes = self.rows["longest_gap_cause"][among]
        codes, counts = np.unique(causes[causes != MISSING], return_counts=True)
        return {self.labels.causes.values[code]: int(count) for code, count in zip(codes, counts, strict=True)}

    def _latencies(self) -> dict[str, "Maker"]:
        rows = self.rows

        def after_arrival(name: str) -> Ints:
            return rows[name] - rows["arrival_ns"]

        return {
            "ttft_ms": lambda: _column(after_arrival("first_token_ns"), self._no_token),
            "e2e_ms": lambda: _column(after_arrival("last_token_ns"), self._failed),
            "tpot_ms": lambda: _column(self._per_gap(0), self._failed, self._shorter_than(2)),
            "tpot_steady_ms": lambda: _column(self._per_gap(1), self._failed, self._shorter_than(3)),
            "longest_gap_ms": lambda: _column(rows["longest_gap_ns"], self._failed, self._shorter_than(2)),
            "first_gap_ms": lambda: _column(rows["first_gap_ns"], self._failed, self._shorter_than(2)),
            "hidden_work_ms": lambda: _column(rows["hidden_ns"], self._failed),
            "queue_to_first_token_ms": lambda: _column(rows["queue_first_ns"], self._no_token),
            "prefill_to_first_token_ms": lambda: _column(rows["prefill_first_ns"], self._no_token),
        }

    def _per_gap(self, left_out: int) -> Floats:
        """Time per gap between tokens, in ns, without the first ``left_out`` (0 or 1) gaps."""
        rows = self.rows
        span = rows["last_token_ns"] - rows["first_token_ns"]
        if left_out:
            span = span - np.maximum(rows["first_gap_ns"], 0)
        return np.asarray(span / np.maximum(rows["output_tokens"] - 1 - left_out, 1))

    @property
    def _failed(self) -> tuple[Absence, Mask]:
        return Absence.FAILED, ~self.finished

    @property
    def _no_token(self) -> tuple[Absence, Mask]:
        return Absence.FAILED, self.rows["first_token_ns"] == MISSING

    def _shorter_than(self, tokens: int) -> tuple[Absence, Mask]:
        """One or two tokens have no gap to speak of; a request without any did not finish."""
        found = self.rows["output_tokens"]
        return Absence.NOT_APPLICABLE, (found > 0) & (found < tokens)

    def _segments(self) -> dict[str, "Maker"]:
        fields = {**_SEGMENT_FIELDS, **_BETWEEN_INSTANCES} if self.instances > 1 else _SEGMENT_FIELDS
        return {name: partial(self._segment, f"{kind}_ns") for name, kind in fields.items()}

    def _segment(self, column: str) -> Column:
        return _column(self.rows[column])

    def _sizes(self) -> dict[str, "Maker"]:
        return {
            "hit_tokens": partial(self._hits, "hit_tokens"),
            "host_hit_tokens": partial(self._hits, "host_hit_tokens"),
            "shared_tokens": partial(self._hits, "shared_tokens"),
            "uncached_prompt_tokens": self._uncached,
            "prefilled_tokens": self._prefilled,
        }

    def _hits(self, column: str) -> Column:
        return Column(self.rows[column].astype(np.float64), "tokens", (self._never_looked_up,))

    def _uncached(self) -> Column:
        left = self.rows["prompt_tokens"] - self.rows["hit_tokens"]
        return Column(left.astype(np.float64), "tokens", (self._never_looked_up,))

    def _prefilled(self) -> Column:
        """Prompt tokens computed for the first time."""
        tokens = self.rows["prefilled_tokens"]
        return Column(tokens.astype(np.float64), "tokens", ((Absence.NOT_MEASURED, tokens == MISSING),))

    @property
    def _never_looked_up(self) -> tuple[Absence, Mask]:
        return Absence.FAILED, self.rows["hit_tokens"] == MISSING


Maker = Callable[[], Column]


def never_came(requests: Requests, offered: int) -> dict[str, int]:
    """Planned requests that were not due before the run ended; they count as cut off."""
    missing = max(0, offered - len(requests))
    return {Outcome.CUT_OFF.value: missing} if missing else {}


class MadeOnce(Mapping[str, T]):
    """Values by name, made when asked for; the ``most`` asked for last are kept."""

    def __init__(self, names: tuple[str, ...], make: Callable[[str], T], *, most: int) -> None:
        self._names = dict.fromkeys(names)
        self._make = make
        self._most = most
        self._made: OrderedDict[str, T] = OrderedDict()

    def __getitem__(self, name: str) -> T:
        if name in self._made:
            self._made.move_to_end(name)
            return self._made[name]
        if name not in self._names:
            raise KeyError(name)
        value = self._made[name] = self._make(name)
        if len(self._made) > self._most:
            self._made.popitem(last=False)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def most_held(rows: int) -> int:
    """Columns of ``rows`` values that are held at a time."""
    return max(1, HELD_VALUES // max(rows, 1))


def _column(ns: Ints | Floats, *absent: tuple[Absence, Mask]) -> Column:
    return Column(np.asarray(ns / NS_PER_MS, dtype=np.float64), "ms", absent)
