"""Which layer moved which metric, and why: sentences from the parts of a request's time."""

from collections.abc import Sequence

from scheduler_core.evidence.metrics.registry import METRICS
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.verdict.layers import Difference
from scheduler_core.verdict.pairs import Changes, Pair, bounded, changes, relative
from scheduler_core.verdict.schema import Interval, LayerEffect
from scheduler_core.verdict.wording import amount, cause_words, percent, within

# What the final table always shows: latency, rate, tails, capacity, fairness, use of the pool, and what streams feel.
EFFECT_METRICS = (
    "ttft_p50_ms", "ttft_p95_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p95_ms", "longest_gap_p95_ms", "e2e_p95_ms",
    "e2e_p99_ms", "queue_wait_p95_ms", "queue_wait_max_ms", "throughput_tokens_per_s", "goodput_rps",
    "completion_share", "running_max", "concurrency_capacity", "fairness_jain", "pool_utilisation", "peak_kv_blocks",
    "hit_rate", "preemptions",
)  # fmt: skip

# Parts of the time of a request, as means: field -> words. Compute first: equal compute makes a wait the cause.
PARTS = {
    "prefill_mean_ms": "prefill compute",
    "decode_mean_ms": "decode compute",
    "recompute_mean_ms": "recompute after preemption",
    "queue_wait_mean_ms": "queue wait",
    "requeue_wait_mean_ms": "waiting after preemption",
    "stalled_mean_ms": "stalled while resident",
    "input_prepare_mean_ms": "host preparation",
    "output_transfer_mean_ms": "output transfer",
    "stream_output_mean_ms": "streaming",
    "host_gap_mean_ms": "the driver's work between steps",
    "unattributed_mean_ms": "unattributed time",
}
_COMPUTE = ("prefill_mean_ms", "decode_mean_ms", "recompute_mean_ms")
EQUAL = 0.10  # compute counts as equal within this relative change
SMALL_SHARE = 0.05  # parts that moved by less than this share of the baseline's E2E are left out


def effects(pairs: Sequence[Pair], change: Difference, *, exact: bool, confidence: float) -> list[LayerEffect]:
    """The layer x metric rows; a layer is credited when it alone changed and the interval excludes 0."""
    return [_effect(metric, changes(pairs, metric, exact=exact), change, confidence) for metric in EFFECT_METRICS]


def _effect(metric: str, found: Changes, change: Difference, confidence: float) -> LayerEffect:
    if found.missing or not found.finite:
        reason = found.missing or "infinite: too many requests did not finish"
        text = f"{metric}: no figure ({reason})"
        return LayerEffect(layer=change.layer, metric=metric, change=None, credited=False, sentence=text)
    low, high = found.bounds(confidence)
    moved = low > 0 or high < 0
    if found.exact:
        bracket = within(None)
    elif len(found.logs) < 2:
        bracket = "one pair, no interval"
    else:
        bracket = within(Interval(low=bounded(relative(low)), high=bounded(relative(high)), confidence=confidence))
    unit = METRICS[metric].unit
    values = f"{amount(found.baseline, unit)} -> {amount(found.candidate, unit)}"
    return LayerEffect(
        layer=change.layer,
        metric=metric,
        change=bounded(found.change),
        credited=moved and change.single,
        sentence=f"{metric} {values}, {percent(found.change)} {bracket}{_credit(change, moved=moved)}",
    )


def _credit(change: Difference, *, moved: bool) -> str:
    if not moved:
        return ": no difference shown"
    if change.none:
        return ": noise, nothing differs between the arms"
    if change.single:
        return f": {change.layer}"
    return f": credited to {change.layer if change.preset else 'the bundle'}, not to one layer"


def why(pairs: Sequence[Pair], change: Difference) -> list[str]:
    """Sentences that explain the difference by the parts of request time that moved."""
    parts = {name: (_mean(pairs, 0, name), _mean(pairs, 1, name)) for name in PARTS}
    known = {name: (old, new) for name, (old, new) in parts.items() if old is not None and new is not None}
    elapsed = _mean(pairs, 0, "e2e_mean_ms")
    if not known or not elapsed:
        return ["the parts of request time were not measured on both sides, so no cause can be named"]
    moved = sorted(known, key=lambda name: -abs(known[name][1] - known[name][0]))
    moved = [name for name in moved if abs(known[name][1] - known[name][0]) >= SMALL_SHARE * elapsed]
    sentences = [_part(name, known) for name in moved[:3]]
    if sentences and change.single:
        sentences[0] += f" ({change.layer})"
    sentences += _gap_sentence(pairs)
    return sentences or ["no part of request time moved by more than 5 % of the baseline's end-to-end time"]


def _part(name: str, known: dict[str, tuple[float, float]]) -> str:
    old, new = known[name]
    verb = "fell" if new < old else "rose"
    sentence = f"{PARTS[name]} {verb} from {amount(old, 'ms')} to {amount(new, 'ms')} per request"
    if name in _COMPUTE:
        return sentence
    before = sum(known[part][0] for part in _COMPUTE if part in known)
    after = sum(known[part][1] for part in _COMPUTE if part in known)
    if before and abs(after - before) <= EQUAL * before:
        return f"{sentence} at equal compute ({amount(before, 'ms')} and {amount(after, 'ms')})"
    if before:
        return f"{sentence} while compute went from {amount(before, 'ms')} to {amount(after, 'ms')}"
    return sentence


def _gap_sentence(pairs: Sequence[Pair]) -> list[str]:
    """The longest gap, with its main cause, when it at least doubled or halved."""
    old, new = _mean(pairs, 0, "longest_gap_max_ms"), _mean(pairs, 1, "longest_gap_max_ms")
    if not old or not new or 0.5 < new / old < 2:
        return []
    side = 1 if new > old else 0
    cause = cause_words(main_cause([pair[side] for pair in pairs]))
    of = "candidate" if side else "baseline"
    return [
        f"the longest wait between two tokens went from {amount(old, 'ms')} to {amount(new, 'ms')}; in the {of} the "
        f"longest gaps come mostly from {cause}"
    ]


def main_cause(runs: Sequence[RunSummary]) -> str:
    """The most frequent cause of longest gaps over ``runs``."""
    counts: dict[str, int] = {}
    for run in runs:
        for cause, count in run.longest_gap_causes.items():
            counts[cause] = counts.get(cause, 0) + count
    return max(counts, key=lambda name: counts[name], default="a cause that was not recorded")


def _mean(pairs: Sequence[Pair], side: int, metric: str) -> float | None:
    figures = [pair[side].metrics.get(metric) for pair in pairs]
    values = [figure.value for figure in figures if figure is not None and figure.value is not None]
    return sum(values) / len(values) if values and len(values) == len(pairs) else None
