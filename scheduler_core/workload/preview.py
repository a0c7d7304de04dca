"""What a page shows of an arrival plan: the arrival curve, lengths, and notes."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from scheduler_core.types.quantile import quantile
from scheduler_core.types.time import NS_PER_S, s_from_ns
from scheduler_core.workload.plan import ArrivalPlan
from scheduler_core.workload.traces.data import same_instants

BUCKETS = 60
QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)


def preview(plan: ArrivalPlan) -> dict[str, Any]:
    """JSON data for pages.

    Times and rate are of the requests with an arrival of their own (``timed``); the others follow answers
    (``dependent``), so when they come is known only from a run. ``rate_rps`` is ``(timed - 1) / span_s``, None without
    a span.
    """
    times = [request.arrival_ns for request in plan.requests if not request.after]
    span_ns = max(times, default=0)
    groups, _ = same_instants(sorted(times))
    prompts = [request.prompt_tokens for request in plan.requests]
    outputs = [request.output_tokens for request in plan.requests]
    return {
        "digest": plan.digest,
        "requests": len(plan.requests),
        "timed": len(times),
        "dependent": len(plan.requests) - len(times),
        "span_s": s_from_ns(span_ns),
        "rate_rps": (len(times) - 1) * NS_PER_S / span_ns if span_ns else None,
        "same_instant_groups": groups,
        "arrivals": _curve(times, span_ns),
        "prompt_tokens": {"sum": plan.prompt_tokens, "quantiles": _quantiles(prompts)},
        "output_tokens": {"sum": plan.output_tokens, "quantiles": _quantiles(outputs)},
        "output_limit_max": max((request.output_limit for request in plan.requests), default=0),
        "tenants": _shares(request.tenant for request in plan.requests),
        "tiers": _shares(request.tier for request in plan.requests),
        "sessions": len({request.session for request in plan.requests} - {None}),
        "block_size": plan.block_size,
        "prefix": _prefix(plan),
        "observed_hit_share": plan.observed_hit_share,
        "notes": list(plan.notes),
    }


def _curve(times: Sequence[int], span_ns: int) -> dict[str, Any]:
    """Arrivals per bucket of equal width, the last arrival in the last bucket."""
    width = -(-(span_ns + 1) // BUCKETS)
    counts = [0] * (BUCKETS if span_ns else 1)
    for at in times:
        counts[at // width] += 1
    return {"bucket_s": s_from_ns(width), "counts": counts}


def _quantiles(values: Sequence[int]) -> dict[str, float]:
    ordered = sorted(values)
    return {f"p{share * 100:g}": quantile(ordered, share) for share in QUANTILES}


def _shares(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def _prefix(plan: ArrivalPlan) -> dict[str, Any] | None:
    """Requests with shared blocks, and the blocks that a cache without bounds could reuse."""
    with_ids = [request.prefix_blocks for request in plan.requests if request.prefix_blocks]
    if not with_ids:
        return None
    seen: set[int] = set()
    hits = 0
    for ids in with_ids:
        hits += next((place for place, item in enumerate(ids) if item not in seen), len(ids))
        seen.update(ids)
    blocks = sum(map(len, with_ids))
    return {"requests": len(with_ids), "blocks": blocks, "hit_blocks": hits, "hit_share": hits / blocks}
