"""The columns that a fold fills, and what takes them."""

from dataclasses import dataclass, field
from typing import Protocol

from scheduler_core.evidence.columns import Codes, Ints
from scheduler_core.evidence.fold.drafts import DRAFT_INTS
from scheduler_core.evidence.fold.spread import SPREAD_INTS
from scheduler_core.evidence.fold.sweep import SEGMENTS

REQUEST_INTS = (
    "request", "tenant", "tier", "prompt_tokens", "output_limit", "output_tokens", "hit_tokens", "rehit_tokens",
    "preemptions", "recomputed_tokens", "steps", "stalled_steps", "arrival_ns", "ended_ns", "first_token_ns",
    "last_token_ns", "first_gap_ns", "longest_gap_ns", "longest_gap_index", "longest_gap_cause", "stall_cause",
    "outcome", "stage", "reason", "cold", "queue_first_ns", "prefill_first_ns", "hidden_ns", "pauses", "degraded",
    "host_hit_tokens", "shared_tokens", "prefilled_tokens",
)  # fmt: skip
SEGMENT_COLUMNS = tuple(f"{name}_ns" for name in SEGMENTS)
STEP_INTS = (
    "step", "planned_ns", "available_ns", "compute_ns", "work_ns", "path_ns", "prefill_tokens", "decode_tokens",
    "recompute_tokens", "prefill_requests", "decode_requests", "stalled", "kv_used", "kv_cached", "kv_free", "waiting",
    "running", "paused", "budget", "device_bytes", "instance", "idle_ns", "idle_empty_ns", "idle_cause", "host_used",
    "copied_out", "copied_in", "evicted_ahead", "copied_on_write", *DRAFT_INTS, *SPREAD_INTS,
)  # fmt: skip
GAP_INTS = ("request", "token", "at_ns", "gap_ns", "cause")
CHUNK_INTS = ("request", "chunk", "at_ns", "tokens", "gap_ns")


class TakesRow(Protocol):
    """A growing table that may spill what it holds."""

    def append(self, *values: int) -> None:
        """Add a row of integers in the table's column order."""


class TakesRows(TakesRow, Protocol):
    """A growing table that takes a row or many."""

    def extend(self, rows: Ints) -> None:
        """Add rows given as an array of (row, column), in the table's column order."""


@dataclass(frozen=True)
class RowTables:
    """Where rows go as they come. ``chunks`` are tokens that came together; None where each comes alone."""

    steps: TakesRow
    gaps: TakesRows
    chunks: TakesRow | None = None


@dataclass
class Labels:
    """Codes of the strings in the columns."""

    tenants: Codes = field(default_factory=Codes)
    tiers: Codes = field(default_factory=Codes)
    outcomes: Codes = field(default_factory=Codes)
    stages: Codes = field(default_factory=Codes)
    reasons: Codes = field(default_factory=Codes)
    causes: Codes = field(default_factory=Codes)
    changes: Codes = field(default_factory=Codes)
