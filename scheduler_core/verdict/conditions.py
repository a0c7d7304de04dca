"""Under which conditions a conclusion holds; it is never extended beyond them."""

from collections import Counter
from collections.abc import Sequence

from scheduler_core.evidence.account import account
from scheduler_core.evidence.schema import NOTES, RunSummary
from scheduler_core.verdict import wording
from scheduler_core.verdict.comparable import FREE_LENGTHS, completion, offered_rps, short
from scheduler_core.verdict.layers import Difference
from scheduler_core.verdict.pairs import Pair
from scheduler_core.verdict.question import Question
from scheduler_core.verdict.sequential import look_at
from scheduler_core.verdict.single_instance import RULE, instances, single_records

FAR_OFF = 0.1
"""Hit shares further apart than this say that the replay is not the traffic that was logged."""

LEVELS = {
    "simulation": "a calibrated model on a simulated clock, not kernels",
    "cpu_kernels": "real kernels on CPU",
    "gpu_kernels": "real kernels on GPU",
    "external_server": "an external server, seen from its client",
    "imported": "results measured elsewhere",
}


def conditions(
    question: Question, pairs: Sequence[Pair], change: Difference, *, exact: bool, runs: Sequence[RunSummary]
) -> list[str]:
    """Sentences: what was varied, on what, with which traffic, how often, and what was not complete.

    ``runs`` are all of the experiment, among which a record of a single instance may be.
    """
    found = [f"varied: {change.sentence()}"]
    if not pairs:
        return found
    run = pairs[0][0]
    named = [str(run.fingerprint[key]) for key in ("device", "cpu", "torch", "profile") if run.fingerprint.get(key)]
    machine = ", ".join(named)
    found.append(
        f"for {LEVELS.get(run.level, run.level)}{f' ({machine})' if machine else ''}, {_instances(run)}; it says "
        "nothing about other models, hardware or topologies"
    )
    found += _single_instance(pairs, runs)
    digests = sorted({short(pair[0].plan_digest) for pair in pairs})
    asked = f"{run.measured} measured of {run.offered} requests per run{_rate(pairs)}"
    found.append(f"traffic: plan {', '.join(digests)}, {asked}")
    found += _prefix_hits(pairs, change)
    if exact:
        found.append("the model ran without noise: figures are exact, there is no interval")
    else:
        plural = "" if len(pairs) == 1 else "s"
        found.append(f"{len(pairs)} pair{plural} of runs, intervals by Student's t over pairs, Holm over gates")
        found += _looks(question, len(pairs))
    if len(pairs) < question.repeats and not question.goal.looks:
        missing = question.repeats - len(pairs)
        found.append(f"{missing} of {question.repeats} repeats have no complete pair and are left out")
    if any(pair[0].lengths_digest != pair[1].lengths_digest for pair in pairs) and run.level in FREE_LENGTHS:
        tokens = [sum(pair[side].output_tokens for pair in pairs) for side in (0, 1)]
        found.append(f"output lengths were not forced: {tokens[0]:,} and {tokens[1]:,} tokens in sum")
    found += sorted({note for pair in pairs for item in pair for note in item.fingerprint.get(NOTES, [])})
    found += [f"{run.arm}: {_account([pair[side] for pair in pairs])}" for side, run in enumerate(pairs[0])]
    shares = [sum(completion(pair[side]) for pair in pairs) / len(pairs) for side in (0, 1)]
    if min(shares) < 1:
        found.append(
            f"completion {shares[0] * 100:.1f} % (baseline) and {shares[1] * 100:.1f} % (candidate); gates read "
            "censored quantiles, in which an unfinished request is infinitely late"
        )
    return [*found, *_took_effect(pairs, change)]


def _rate(pairs: Sequence[Pair]) -> str:
    """At which rate requests were sent, where a client says so; repeats may have several."""
    rates = [rate for pair in pairs if (rate := offered_rps(pair[0])) is not None]
    if not rates:
        return ""
    slowest, fastest = wording.digits(min(rates)), wording.digits(max(rates))
    return f", sent at {slowest if slowest == fastest else f'{slowest} to {fastest}'} requests/s"


def _prefix_hits(pairs: Sequence[Pair], change: Difference) -> list[str]:
    """What the replay hits beside what was hit where the traffic was logged: a verdict on the cache rests on it."""
    if not any(key.startswith("cache.") for key in (*change.parameters, *change.deployment)):
        return []
    found = [[_value(pair[side], "hit_rate") for pair in pairs] for side in (0, 1)]
    means = [_mean([value for value in side if value is not None]) for side in found]
    replayed = [wording.share(mean) if mean is not None else "unknown" for mean in means]
    text = f"prefix hits replayed: {replayed[0]} of looked-up prompt tokens (baseline), {replayed[1]} (candidate)"
    observed = pairs[0][0].observed_hit_share
    if observed is None:
        return [f"{text}; not known is what was hit where the traffic comes from"]
    text += f"; observed where it was logged: {wording.share(observed)}"
    if means[0] is not None and abs(means[0] - observed) > FAR_OFF:
        text += (
            ": the replay does not share prompts as the real traffic did, so a verdict on the cache does not carry over"
        )
    return [text]


def _value(run: RunSummary, metric: str) -> float | None:
    return run.metrics[metric].value if metric in run.metrics else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _instances(run: RunSummary) -> str:
    if not run.pools:
        return "one instance"
    return f"instances: {', '.join(f'{pool.instances} {name}' for name, pool in run.pools.items())}"


def _account(runs: Sequence[RunSummary]) -> str:
    """What became of every planned request of an arm's runs."""
    outcomes, unsent = Counter[str](), Counter[str]()
    for run in runs:
        outcomes.update(run.outcomes)
        unsent.update(run.unsent)
    return account(sum(run.offered for run in runs), outcomes, unsent).sentence()


def _single_instance(pairs: Sequence[Pair], runs: Sequence[RunSummary]) -> list[str]:
    """R23: what several instances or devices gain is measured from a single one."""
    compared = [run for pair in pairs for run in pair]
    if min(map(instances, compared)) > 1:
        singles = single_records(runs, (run.plan_digest for run in compared))
        if not singles:
            return [f"{RULE}: no arm is a single instance, so nothing several of them gain over one can be accepted"]
        return [f"{RULE}: beside a record of a single instance on this plan, arm {singles[0].arm}"]
    if all(_several_devices(run) for run in compared):
        return [
            f"{RULE}: both arms spread an instance over several devices, so this says nothing about what these gain "
            "over one"
        ]
    return []


def _several_devices(run: RunSummary) -> bool:
    spread = run.metrics.get("collective_ms")
    return spread is not None and spread.value is not None


def _looks(question: Question, pairs: int) -> list[str]:
    """The group-sequential plan and where it stands."""
    goal = question.goal
    if not goal.looks:
        return []
    look = look_at(goal.looks, pairs, 1 - goal.confidence)
    shown = ", ".join(str(count) for count in goal.looks)
    if look is None:
        return [f"declared looks at {shown} pairs; none is reached"]
    return [f"declared looks at {shown} pairs; this is look {look.number}, at level {look.alpha:.2g}"]


def _took_effect(pairs: Sequence[Pair], change: Difference) -> list[str]:
    """Figures that show a changed batch parameter at work."""
    shown = []
    for parameter, metric, words in (
        ("batch.token_budget", "batch_tokens_max", "largest step in tokens"),
        ("batch.size", "running_max", "most requests at once"),
        ("cache.blocks", "peak_kv_blocks", "most KV blocks used"),
    ):
        if parameter in change.parameters:
            values = []
            for side in (0, 1):
                figures = [pair[side].metrics.get(metric) for pair in pairs]
                values.append(max((f.value for f in figures if f is not None and f.value is not None), default=None))
            if None not in values:
                shown.append(f"{parameter} took effect: {words} {values[0]:g} and {values[1]:g}")
    return shown
