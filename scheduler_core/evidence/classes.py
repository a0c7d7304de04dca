"""Figures per tenant and per tier, so that a good average cannot hide who pays for it."""

import numpy as np

from scheduler_core.evidence.columns import Codes, Ints
from scheduler_core.evidence.metric import tail
from scheduler_core.evidence.requests import Requests
from scheduler_core.evidence.schema import ClassSummary
from scheduler_core.evidence.tables import Mask

CLASS_FIELDS = ("ttft", "e2e", "queue_wait")


def class_summaries(requests: Requests) -> dict[str, ClassSummary]:
    """One summary per tenant and per tier, where a run has several of either."""
    found: dict[str, ClassSummary] = {}
    kinds: tuple[tuple[str, Codes, Ints], ...] = (
        ("tenant", requests.labels.tenants, requests.rows["tenant"]),
        ("tier", requests.labels.tiers, requests.rows["tier"]),
    )
    for kind, codes, column in kinds:
        if len(codes.values) < 2:
            continue
        for code, name in enumerate(codes.values):
            rows = requests.counted & (column == code)
            if rows.any():
                found[f"{kind} {name}"] = _summary(requests, rows)
    return found


def _summary(requests: Requests, rows: Mask) -> ClassSummary:
    done = rows & requests.finished
    late = np.full(int((rows & ~requests.finished).sum()), np.inf)
    metrics = {}
    for field in CLASS_FIELDS:
        values = np.concatenate([np.sort(requests.columns[f"{field}_ms"].values[done]), late])
        for share in (0.5, 0.95):
            metrics[f"{field}_p{share * 100:.0f}_censored_ms"] = tail(values, share)
    return ClassSummary(offered=int(rows.sum()), finished=int(done.sum()), metrics=metrics)
