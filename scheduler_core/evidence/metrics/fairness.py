"""Fairness between tenants: Jain's index over slowdowns, and each tenant's share of what was served.

Jain's index of n values x is (sum x)^2 / (n sum x^2): 1 when all are equal, 1/n when one has everything (Jain, Chiu and
Hawe, DEC Research Report TR-301, 1984).
"""

from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np

from scheduler_core.evidence.metrics.metric import Metric, absent, present
from scheduler_core.evidence.schema import Absence, Figure
from scheduler_core.evidence.tables.run_tables import RunTables
from scheduler_core.evidence.tables.tables import Mask


def jain(values: Iterable[float]) -> float:
    """Jain's index of positive values."""
    found = np.asarray(list(values), dtype=np.float64)
    return float(found.sum() ** 2 / (len(found) * (found * found).sum()))


def _tenants(run: RunTables) -> Iterator[tuple[str, Mask]]:
    """Each tenant with its warm measured requests."""
    for code, name in enumerate(run.requests.labels.tenants.values):
        rows = run.requests.counted & (run.requests.rows["tenant"] == code)
        if rows.any():
            yield name, rows


def _slowdown_jain(run: RunTables) -> Figure:
    tenants = list(_tenants(run))
    if len(tenants) < 2:
        return absent("index", Absence.NOT_APPLICABLE, "one tenant")
    slowdown = run.slowdown
    if slowdown is None:
        return absent("index", Absence.NOT_MEASURED, "no calibrated E2E of the same requests alone")
    means = []
    for name, rows in tenants:
        done = rows & run.requests.finished
        if not done.any():
            return absent("index", Absence.FAILED, f"tenant {name} finished nothing: infinitely slow")
        means.append(float(slowdown[done].mean()))
    return present(jain(means), "index", len(means))


def _service_jain(run: RunTables) -> Figure:
    """Over what each tenant got of what it asked for; needs no calibration."""
    tenants = list(_tenants(run))
    if len(tenants) < 2:
        return absent("index", Absence.NOT_APPLICABLE, "one tenant")
    shares = [float((rows & run.requests.finished).sum() / rows.sum()) for _, rows in tenants]
    if not any(shares):
        return absent("index", Absence.FAILED, "no tenant finished anything")
    return present(jain(shares), "index", len(shares))


def _worst_share(run: RunTables) -> Figure:
    tokens = run.requests.rows["output_tokens"]
    served = {name: float(tokens[rows & run.requests.finished].sum()) for name, rows in _tenants(run)}
    total = sum(served.values())
    if len(served) < 2:
        return absent("share", Absence.NOT_APPLICABLE, "one tenant")
    if not total:
        return absent("share", Absence.FAILED, "no tenant finished anything")
    least = min(served, key=lambda name: served[name])
    return present(served[least] / total, "share", len(served), f"tenant {least}")


def _slowdown(run: RunTables, *, worst: bool) -> Figure:
    slowdown = run.slowdown
    if slowdown is None:
        return absent("x", Absence.NOT_MEASURED, "no calibrated E2E of the same requests alone")
    done = run.requests.warm_finished
    if not done.any():
        return absent("x", Absence.NOT_APPLICABLE, "not defined (0 samples)", 0)
    values = slowdown[done]
    return present(float(values.max() if worst else values.mean()), "x", int(done.sum()))


def fairness_metrics() -> Iterator[Metric]:
    """All of them."""
    alone = "E2E / calibrated E2E of the same request with the device to itself"
    yield Metric("slowdown_mean_x", "x", f"mean over warm finished measured requests of {alone}", "lower", "request",
                 "any", partial(_slowdown, worst=False))  # fmt: skip
    yield Metric("slowdown_max_x", "x", f"largest over warm finished measured requests of {alone}", "lower", "request",
                 "any", partial(_slowdown, worst=True))  # fmt: skip
    yield Metric("fairness_jain", "index", f"Jain's index over tenants of the mean {alone}", "higher", "run",
                 "one per run", _slowdown_jain)  # fmt: skip
    yield Metric("fairness_service_jain", "index", "Jain's index over tenants of finished / offered requests", "higher",
                 "run", "one per run", _service_jain)  # fmt: skip
    yield Metric("tenant_least_token_share", "share", "smallest tenant's share of the output tokens of finished "
                 "measured requests; the note names it", "none", "run", "one per run", _worst_share)  # fmt: skip
