"""Figures per tenant and per tier, so that a good average cannot hide who pays for it."""

import numpy as np

from scheduler_core.evidence.columns import Codes, Ints
from scheduler_core.evidence.metrics.metric import absent, present, tail
from scheduler_core.evidence.schema import Absence, ClassSummary, Figure
from scheduler_core.evidence.tables.requests import Floats, Requests
from scheduler_core.evidence.tables.tables import Mask

CLASS_FIELDS = ("ttft", "e2e", "queue_wait")


def class_summaries(requests: Requests, slowdown: Floats | None) -> dict[str, ClassSummary]:
    """One summary per tenant and per tier, where a run has several of either; ``slowdown`` is by request."""
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
                found[f"{kind} {name}"] = _summary(requests, rows, slowdown)
    return found


def _summary(requests: Requests, rows: Mask, slowdown: Floats | None) -> ClassSummary:
    done = rows & requests.finished
    late = np.full(int((rows & ~requests.finished).sum()), np.inf)
    metrics = {}
    for field in CLASS_FIELDS:
        values = np.concatenate([np.sort(requests.columns[f"{field}_ms"].values[done]), late])
        for share in (0.5, 0.95, 0.99):
            metrics[f"{field}_p{share * 100:.0f}_censored_ms"] = tail(values, share)
    metrics["token_share"] = _token_share(requests, done)
    if slowdown is None:
        metrics["slowdown_mean_x"] = absent("x", Absence.NOT_MEASURED, "no calibrated E2E of the same requests alone")
    elif done.any():
        metrics["slowdown_mean_x"] = present(float(slowdown[done].mean()), "x", int(done.sum()))
    else:
        metrics["slowdown_mean_x"] = absent("x", Absence.FAILED, "finished nothing: infinitely slow", 0)
    return ClassSummary(offered=int(rows.sum()), finished=int(done.sum()), metrics=metrics)


def _token_share(requests: Requests, done: Mask) -> Figure:
    """Share of the output tokens of finished measured requests that went to this class."""
    tokens = requests.rows["output_tokens"]
    total = float(tokens[requests.warm_finished].sum())
    if not total:
        return absent("share", Absence.NOT_APPLICABLE, "nothing finished")
    return present(float(tokens[done].sum()) / total, "share", int(done.sum()))
