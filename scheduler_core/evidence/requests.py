"""The requests of a run as columns, with every derived figure computed in one place."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from scheduler_core.evidence.columns import MISSING, Ints
from scheduler_core.evidence.layout import SEGMENT_COLUMNS, Labels
from scheduler_core.evidence.schema import Absence
from scheduler_core.evidence.tables import Mask
from scheduler_core.types.intervals import IntervalClass
from scheduler_core.types.reasons import Outcome
from scheduler_core.types.time import NS_PER_MS

Floats = npt.NDArray[np.float64]


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
    def columns(self) -> dict[str, Column]:
        """Every derived field by name."""
        fields = {**self._latencies(), **self._segments(), **self._sizes()}
        nothing = np.zeros(len(self))
        always = np.ones(len(self), dtype=np.bool_)
        for name, unit in NOT_APPLICABLE.items():
            if name in fields:
                continue  # a target that has it says so
            fields[name] = Column(nothing, unit, ((Absence.NOT_APPLICABLE, always),))
        fields["input_transfer_bytes"] = Column(nothing, "bytes", ((Absence.NOT_MEASURED, always),))
        return fields

    @cached_property
    def segment_sum_ns(self) -> Ints:
        """Sum of all segments, unattributed included."""
        total = np.zeros(len(self), dtype=np.int64)
        for name in SEGMENT_COLUMNS:
            total += self.rows[name]
        return total

    def lengths_digest(self) -> str:
        """Digest over (request, output tokens) of finished requests."""
        pairs = np.stack([self.rows["request"][self.finished], self.rows["output_tokens"][self.finished]])
        return hashlib.blake2b(pairs.astype("<i8").tobytes(), digest_size=16).hexdigest()

    def finished_tokens(self) -> int:
        """Output tokens of finished requests."""
        return int(self.rows["output_tokens"][self.finished].sum())

    def reasons(self) -> dict[str, int]:
        """Requests that did not finish, counted by ``outcome: stage: reason``."""
        labels, rows = self.labels, self.rows
        keys = np.stack([rows["outcome"], rows["stage"], rows["reason"]])[:, ~self.finished]
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

    def _latencies(self) -> dict[str, Column]:
        rows = self.rows
        tokens = rows["output_tokens"]
        no_token = rows["first_token_ns"] == MISSING
        unfinished = ~self.finished
        single = tokens == 1
        two = tokens == 2
        failed = (Absence.FAILED, unfinished)
        decode_ns = rows["last_token_ns"] - rows["first_token_ns"]
        steady_ns = decode_ns - np.maximum(rows["first_gap_ns"], 0)
        return {
            "ttft_ms": _column(rows["first_token_ns"] - rows["arrival_ns"], (Absence.FAILED, no_token)),
            "e2e_ms": _column(rows["last_token_ns"] - rows["arrival_ns"], failed),
            "tpot_ms": _column(decode_ns / np.maximum(tokens - 1, 1), failed, (Absence.NOT_APPLICABLE, single)),
            "tpot_steady_ms": _column(
                steady_ns / np.maximum(tokens - 2, 1), failed, (Absence.NOT_APPLICABLE, single | two)
            ),
            "longest_gap_ms": _column(rows["longest_gap_ns"], failed, (Absence.NOT_APPLICABLE, single)),
            "first_gap_ms": _column(rows["first_gap_ns"], failed, (Absence.NOT_APPLICABLE, single)),
            "hidden_work_ms": _column(rows["hidden_ns"], failed),
            "queue_to_first_token_ms": _column(rows["queue_first_ns"], (Absence.FAILED, no_token)),
            "prefill_to_first_token_ms": _column(rows["prefill_first_ns"], (Absence.FAILED, no_token)),
        }

    def _segments(self) -> dict[str, Column]:
        fields = {**_SEGMENT_FIELDS, **_BETWEEN_INSTANCES} if self.instances > 1 else _SEGMENT_FIELDS
        return {name: _column(self.rows[f"{kind}_ns"]) for name, kind in fields.items()}

    def _sizes(self) -> dict[str, Column]:
        hits = self.rows["hit_tokens"]
        never = (Absence.FAILED, hits == MISSING)
        return {
            "hit_tokens": Column(hits.astype(np.float64), "tokens", (never,)),
            "host_hit_tokens": Column(self.rows["host_hit_tokens"].astype(np.float64), "tokens", (never,)),
            "uncached_prompt_tokens": Column(
                (self.rows["prompt_tokens"] - hits).astype(np.float64), "tokens", (never,)
            ),
        }


def _column(ns: Ints | Floats, *absent: tuple[Absence, Mask]) -> Column:
    return Column(np.asarray(ns / NS_PER_MS, dtype=np.float64), "ms", absent)
