"""The block bootstrap inside one run: how far its quantiles would move had other blocks of requests come.

Neighbouring requests share a queue, so whole blocks of them (by arrival) are drawn with replacement. What differs
between runs (drift of the machine, another plan) is not in it: it is a second opinion beside the pairs, never a gate.
"""

import math

import numpy as np

from scheduler_core.evidence.tables.requests import Floats, Requests

QUANTILES: dict[str, tuple[str, float]] = {
    "ttft_p50_ms": ("ttft_ms", 0.50),
    "ttft_p95_ms": ("ttft_ms", 0.95),
    "tpot_p50_ms": ("tpot_ms", 0.50),
    "tpot_p95_ms": ("tpot_ms", 0.95),
    "e2e_p50_ms": ("e2e_ms", 0.50),
    "e2e_p95_ms": ("e2e_ms", 0.95),
    "longest_gap_p95_ms": ("longest_gap_ms", 0.95),
    "queue_wait_p95_ms": ("queue_wait_ms", 0.95),
}
DRAWS = 200
SEED = 20_260
FEWEST, MOST = 20, 5_000  # requests; beyond, blocks are so many that the error inside a run no longer matters


def within_run_errors(requests: Requests) -> dict[str, float]:
    """Standard error of the log of each quantile; left out where it is not defined or not worth the time."""
    found: dict[str, float] = {}
    if (requests.counted & (~requests.finished | (requests.rows["output_tokens"] > 1))).sum() > MOST:
        return found  # so many have every one of these figures
    for metric, (field, share) in QUANTILES.items():
        column = requests.columns[field]
        finished = requests.counted & requests.finished
        wanted = requests.counted & (~finished | column.present)
        if FEWEST <= wanted.sum() <= MOST:
            error = log_quantile_error(np.where(finished, column.values, np.inf)[wanted], share)
            if error is not None:
                found[metric] = error
    return found


def log_quantile_error(values: Floats, share: float, draws: int = DRAWS, seed: int = SEED) -> float | None:
    """Standard deviation of ``log(quantile)`` over ``draws`` block resamples of ``values`` in order of arrival.

    Blocks are ``2 n^(1/3)`` long and wrap around. None when a resample's quantile is zero or infinite.
    """
    count = len(values)
    length = max(1, math.ceil(2 * count ** (1 / 3)))
    blocks = math.ceil(count / length)
    starts = np.random.default_rng(seed).integers(0, count, size=(draws, blocks))
    places = (starts[:, :, None] + np.arange(length)) % count
    drawn = np.sort(values[places.reshape(draws, -1)[:, :count]], axis=1)
    place = (count - 1) * share
    low = math.floor(place)
    below, above = drawn[:, low], drawn[:, min(low + 1, count - 1)]
    if not np.isfinite(above).all():
        return None
    quantiles = below + (above - below) * (place - low)
    return float(np.log(quantiles).std(ddof=1)) if (quantiles > 0).all() else None
