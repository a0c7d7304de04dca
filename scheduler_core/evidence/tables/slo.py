"""Service-level objectives: which requests met what their tier was promised."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scheduler_core.evidence.columns import MISSING
from scheduler_core.evidence.schema import TierSummary
from scheduler_core.evidence.tables.requests import Requests
from scheduler_core.evidence.tables.tables import Mask
from scheduler_core.spec.workload import Tier

# Upper bounds of the prompt-length buckets in which attainment is shown, in tokens.
BUCKETS = (128, 512, 2048, 8192, 32768)


@dataclass(frozen=True)
class Attainment:
    """Per request: whether each objective of its tier was met, and all of them together.

    An unfinished request met nothing. An objective on TPOT does not exist for a one-token answer, so it cannot be
    missed by one; a tier without objectives counts finished requests.
    """

    by_objective: dict[str, Mask]
    met: Mask


def attainment(requests: Requests, tiers: Mapping[str, Tier]) -> Attainment:
    """Judge every request by its tier's objectives; a tier that is not in ``tiers`` has none."""
    count = len(requests)
    fields = requests.columns
    hits = requests.rows["hit_tokens"]
    uncached = requests.rows["prompt_tokens"] - np.where(hits == MISSING, 0, hits)
    by_objective = {name: np.ones(count, dtype=np.bool_) for name in ("ttft_ms", "tpot_ms", "e2e_ms")}
    for code, name in enumerate(requests.labels.tiers.values):
        tier = tiers.get(name, Tier())
        rows = requests.rows["tier"] == code
        line = tier.ttft_line()
        if line is not None:
            limit = line.base + line.per_token * uncached
            by_objective["ttft_ms"][rows] = (fields["ttft_ms"].values <= limit)[rows]
        if tier.tpot_ms is not None:
            tpot = fields["tpot_ms"]
            single = requests.rows["output_tokens"] == 1
            by_objective["tpot_ms"][rows] = ((tpot.values <= tier.tpot_ms) | single)[rows]
        if tier.e2e_ms is not None:
            by_objective["e2e_ms"][rows] = (fields["e2e_ms"].values <= tier.e2e_ms)[rows]
    met = requests.finished.copy()
    for mask in by_objective.values():
        mask &= requests.finished
        met &= mask
    return Attainment(by_objective, met)


def tier_summaries(requests: Requests, tiers: Mapping[str, Tier]) -> dict[str, TierSummary]:
    """Attainment of each tier that has requests in the measured window, by objective and by prompt length."""
    judged = attainment(requests, tiers)
    summaries: dict[str, TierSummary] = {}
    for code, name in enumerate(requests.labels.tiers.values):
        rows = requests.measured & (requests.rows["tier"] == code)
        offered = int(rows.sum())
        if not offered:
            continue
        tier = tiers.get(name, Tier())
        objectives = [key for key in judged.by_objective if getattr(tier, key) is not None]
        met = int((rows & judged.met).sum())
        summaries[name] = TierSummary(
            offered=offered,
            finished=int((rows & requests.finished).sum()),
            met=met,
            attainment_share=met / offered,
            by_objective={key: int((rows & judged.by_objective[key]).sum()) for key in objectives},
            by_prompt_tokens=_by_length(requests, rows, judged.met),
        )
    return summaries


def _by_length(requests: Requests, rows: Mask, met: Mask) -> dict[str, tuple[int, int]]:
    prompt = requests.rows["prompt_tokens"]
    buckets: dict[str, tuple[int, int]] = {}
    low = 0
    for high in (*BUCKETS, None):
        inside = rows & (prompt > low) & ((prompt <= high) if high is not None else True)
        if inside.any():
            label = f"{low + 1}-{high}" if high is not None else f"over {low}"
            buckets[label] = (int((inside & met).sum()), int(inside.sum()))
        low = high or low
    return buckets
