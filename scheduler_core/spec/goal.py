"""The goal: gates declared before the run."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from scheduler_core.spec.base import Fraction, Spec
from scheduler_core.spec.thresholds import ThresholdName

Threshold = Annotated[float, Field(ge=0)]

# Direction in which each gateable metric is better; scheduler_core.evidence.metrics.registry holds the formulas.
MetricName = Literal[
    "ttft_p50_ms",
    "ttft_p95_ms",
    "ttft_p99_ms",
    "tpot_p50_ms",
    "tpot_p95_ms",
    "itl_p99_ms",
    "longest_gap_p95_ms",
    "e2e_p50_ms",
    "e2e_p95_ms",
    "e2e_p99_ms",
    "queue_wait_p95_ms",
    "goodput_rps",
    "throughput_tokens_per_s",
    "throughput_requests_per_s",
    "completion_share",
    "rejection_share",
    "timeout_share",
    "degraded_share",
    "attainment_share",
    "goodput_per_device_rps",
    "cost_per_million_tokens",
    "peak_kv_blocks",
    "peak_memory_mb",
]


OF_OFFERED = ("rejection_share", "timeout_share", "degraded_share")
"""Shares of offered requests that may well be 0: their change is a difference, not a ratio."""


NO_GATES = {
    "R3": ("input_", "output_transfer_", "stream_output_", "handoff_", "transfer_", "communication_", "exposed_comm_",
           "hidden_comm_", "network_wait_", "overlap_ratio"),
    "R16": ("pool_utilisation", "device_busy_", "batch_utilisation", "prefill_pool_", "decode_pool_"),
}  # fmt: skip
"""Beginnings of figures that explain a result and are no goal: moving data (R3), and how busy a device is (R16)."""


def _can_be_a_gate(name: Any) -> Any:
    for rule, stems in NO_GATES.items():
        if isinstance(name, str) and name.startswith(stems):
            why = "it explains a gain and is none" if rule == "R3" else "utilisation alone decides nothing"
            raise ValueError(f"{rule}: {name} cannot be a gate, {why}; gate a latency, a rate or a cost")
    return name


class GoalSpec(Spec):
    """One primary metric with a margin, and guards with non-inferiority margins."""

    kind: Literal["interactive", "offline", "long_context", "bursty"] = "interactive"
    primary: MetricName = "ttft_p95_ms"
    better_by: Fraction = Field(0.10, gt=0, lt=1, description="Least relative gain worth having.")
    guard: dict[MetricName, Fraction] = Field(
        default={"tpot_p95_ms": 0.05, "goodput_rps": -0.02},
        description='Change still allowed in each: "+5%" of a time, "-2%" of a rate, and of rejection_share, '
        'timeout_share and degraded_share "+2%" of all offered requests.',
    )
    confidence: float = Field(0.95, gt=0.5, lt=1)
    looks: tuple[int, ...] = Field(
        (),
        max_length=10,
        description="Group-sequential rule: numbers of pairs at which the gates are looked at, such as 5, 10, 20. "
        "Pairs may then be added until a look decides; the error rate is kept. Empty: one look at all pairs.",
    )

    thresholds: dict[ThresholdName, Threshold] = Field(
        {},
        description="Numbers that the diagnosis compares with, where they are not to be the defaults; each finding "
        "prints those it used.",
    )

    @field_validator("primary", mode="before")
    @classmethod
    def _primary_decides(cls, name: Any) -> Any:
        return _can_be_a_gate(name)

    @field_validator("guard", mode="before")
    @classmethod
    def _guards_decide(cls, guard: Any) -> Any:
        for name in guard if isinstance(guard, Mapping) else ():
            _can_be_a_gate(name)
        return guard

    @model_validator(mode="after")
    def _looks_rise(self) -> Self:
        if any(later <= earlier for earlier, later in pairwise((4, *self.looks))):
            raise ValueError("looks: numbers of pairs must rise and begin with 5 or more")
        return self
