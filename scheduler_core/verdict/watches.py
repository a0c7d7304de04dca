"""What is always watched, whatever the goal names: stalled streams, starved classes, requests that did not finish.

A watch speaks only when it is broken or suspicious, so it costs declared gates nothing. It can take an accept away,
never give one.
"""

import math
from collections.abc import Iterator, Sequence

from scheduler_core.evidence.schema import RunSummary
from scheduler_core.verdict.pairs import Pair, class_changes, t_quantile
from scheduler_core.verdict.schema import Gate
from scheduler_core.verdict.wording import amount, cause_words, percent

STALL_SHARE = 0.01  # rise of the share of stalled requests that matters
CLASS_MARGIN = 0.5  # relative rise of one class's tail that counts as making it pay
CLASS_METRICS = ("ttft_p95_censored_ms", "e2e_p95_censored_ms", "ttft_p50_censored_ms", "e2e_p50_censored_ms")
CONFIDENCE = 0.95


def watches(pairs: Sequence[Pair], *, exact: bool) -> list[Gate]:
    """Guards that are broken (``failed``) or that the pairs cannot clear (``undecided``); none when all is well."""
    return [*_stalls(pairs, exact=exact), *_classes(pairs, exact=exact)]


def _stalls(pairs: Sequence[Pair], *, exact: bool) -> Iterator[Gate]:
    """Differences of the share of requests with a gap over one second (and over ten usual gaps)."""
    rows = [(_value(base, "stall_share"), _value(candidate, "stall_share")) for base, candidate in pairs]
    known = [(old, new) for old, new in rows if old is not None and new is not None]
    if not known or len(known) < len(rows):
        return
    differences = [new - old for old, new in known]
    mean = sum(differences) / len(differences)
    if mean <= STALL_SHARE:
        return
    sure = exact or _lower_bound(differences) > 0
    old, new = (sum(side) / len(known) for side in zip(*known, strict=True))
    longest = max(_value(candidate, "longest_gap_max_ms") or 0.0 for _, candidate in pairs)
    yield Gate(
        metric="stall_share", role="guard", unit="share", better="lower", margin=STALL_SHARE, baseline=old,
        candidate=new, change=None, interval=None, label="worse" if sure else "undecided",
        state="failed" if sure else "undecided",
        sentence=f"streams stall: {amount(new, 'share')} of requests wait over a second for a token (baseline "
        f"{amount(old, 'share')}), the longest {amount(longest, 'ms')}, {_cause(pairs)}; always watched: at most "
        f"{STALL_SHARE * 100:g} points more",
    )  # fmt: skip


def _classes(pairs: Sequence[Pair], *, exact: bool) -> Iterator[Gate]:
    """The class whose tail suffers most, when it suffers by more than `CLASS_MARGIN`."""
    names = sorted({name for pair in pairs for run in pair for name in run.classes})
    worst: tuple[float, Gate] | None = None
    for name in names:
        for metric in CLASS_METRICS:
            found = class_changes(pairs, name, metric, exact=exact)
            if found.missing or not found.mean > math.log1p(CLASS_MARGIN):  # NaN included
                continue
            low, _ = found.bounds(1 - 2 * (1 - CONFIDENCE) / max(len(names), 1)) if found.finite else (found.mean, 0)
            sure = low > math.log1p(CLASS_MARGIN) and (exact or len(pairs) > 1)
            gate = Gate(
                metric=f"{name}: {metric}", role="guard", unit="ms", better="lower", margin=CLASS_MARGIN,
                baseline=found.baseline, candidate=found.candidate, interval=None,
                change=min(found.change, 1e6) if found.finite else None, label="worse" if sure else "undecided",
                state="failed" if sure else "undecided",
                sentence=f"{name} pays: {metric.replace('_censored', '')} {amount(found.baseline, 'ms')} -> "
                f"{amount(found.candidate, 'ms')} ({percent(found.change)}); always watched: at most "
                f"{CLASS_MARGIN * 100:g} % worse for any tenant or tier",
            )  # fmt: skip
            if worst is None or found.mean > worst[0]:
                worst = (found.mean, gate)
    if worst is not None:
        yield worst[1]


def _value(run: RunSummary, metric: str) -> float | None:
    figure = run.metrics.get(metric)
    return figure.value if figure is not None else None


def _cause(pairs: Sequence[Pair]) -> str:
    counts: dict[str, int] = {}
    for _, run in pairs:
        for cause, count in run.stall_causes.items():
            counts[cause] = counts.get(cause, 0) + count
    cause = max(counts, key=lambda name: counts[name], default="")
    return f"most often caused by {cause_words(cause)}" if cause else "cause not recorded"


def _lower_bound(values: Sequence[float]) -> float:
    """One-sided lower bound of the mean at `CONFIDENCE`."""
    count = len(values)
    if count < 2:
        return -math.inf
    mean = sum(values) / count
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    return mean - t_quantile(CONFIDENCE, count - 1) * spread / math.sqrt(count)
