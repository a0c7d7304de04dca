"""Numbers that a diagnosis compares with; each finding prints those it used, and a goal may set any of them."""

from typing import Literal

ThresholdName = Literal[
    "jitter_over_gap",
    "prefill_cause_share",
    "kept_share",
    "missed_share",
    "same_change",
    "worse_change",
    "low_utilisation",
    "queue_over_e2e",
    "least_queue_ms",
    "exposed_over_e2e",
    "expert_imbalance",
    "kv_peak_share",
    "preempted_share",
    "handoff_budget_ms",
    "overlap_rise",
    "equal_change",
    "more_requests",
    "misfits",
]

THRESHOLDS: dict[ThresholdName, float] = {
    "jitter_over_gap": 4.0,  # p99 - p50 of token gaps, over the median gap
    "prefill_cause_share": 0.5,  # of the longest gaps that prefill made
    "kept_share": 0.95,  # of requests that met an objective: it is kept
    "missed_share": 0.90,  # below: it is missed
    "same_change": 0.05,
    "worse_change": 0.10,
    "low_utilisation": 0.50,
    "queue_over_e2e": 0.25,
    "least_queue_ms": 10.0,
    "exposed_over_e2e": 0.20,
    "expert_imbalance": 1.5,
    "kv_peak_share": 0.95,
    "preempted_share": 0.01,  # preemptions per measured request
    "handoff_budget_ms": 50.0,
    "overlap_rise": 0.05,
    "equal_change": 0.02,
    "more_requests": 0.25,
    "misfits": 0,  # requests that are larger than what there is
}
