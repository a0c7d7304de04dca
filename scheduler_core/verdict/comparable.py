"""Whether two arms may be compared at all: the obstacles, each in a sentence, before any figure is read."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from scheduler_core.evidence.schema import NOTES, RunSummary
from scheduler_core.verdict.layers import Difference
from scheduler_core.verdict.pairs import Pair, changes_of
from scheduler_core.verdict.wording import digits, join


@dataclass(frozen=True, slots=True)
class Output:
    """Token ids of one request and the positions where its two best logits nearly tied."""

    tokens: Sequence[int]
    ties: Sequence[int] = ()


FREE_LENGTHS = ("imported", "external_server")
LENGTH_TOLERANCE = 0.02
MOST_REASONS = 3
RATE_TOLERANCE = 0.05

Outputs = Callable[[str], Mapping[int, Output]]


def usable(runs: Sequence[RunSummary], arm: str) -> dict[int, RunSummary]:
    """The arm's complete runs by repeat, the newest attempt of each."""
    found: dict[int, RunSummary] = {}
    for run in sorted(runs, key=lambda run: run.attempt):
        if run.arm == arm and run.complete:
            found[run.repeat] = run
    return found


def obstacles(pairs: Sequence[Pair], change: Difference, *, kind: str, outputs: Outputs | None) -> list[str]:
    """Why these pairs cannot be compared, each with the rule it breaks; empty when they can."""
    found = {
        "": [*_audits(pairs), *_void(pairs)],
        "R2": _nothing_served(pairs),
        "R1": [*_plans(pairs), *_rates(pairs), *_cache(pairs)],
        "R21": _fields(pairs),
        "R28": _targets(pairs),
        "R40": _machines(pairs),
        "R39": [*_quality(pairs), *_lengths(pairs), *_outputs(pairs, outputs)],
        "R37": _conditions_vary(pairs),
        "R30": _no_effect(pairs, change, kind=kind),
    }
    return [named(rule, sentence) for rule, sentences in found.items() for sentence in sentences]


def named(rule: str, sentence: str) -> str:
    """An obstacle with the rule it breaks in front."""
    return f"{rule}: {sentence}" if rule else sentence


def _runs(pairs: Sequence[Pair]) -> Iterator[RunSummary]:
    for pair in pairs:
        yield from pair


def _audits(pairs: Sequence[Pair]) -> Iterator[str]:
    for run in _runs(pairs):
        if not run.audit.passed:
            first = run.audit.violations[0] if run.audit.violations else None
            what = f"{first.rule}: {first.where}: {first.message}" if first else "no violation recorded"
            yield f"run {run.run} ({run.arm}, repeat {run.repeat}) failed its audit: {what}"


def _void(pairs: Sequence[Pair]) -> Iterator[str]:
    for run in _runs(pairs):
        if run.void:
            yield f"run {run.run} ({run.arm}, repeat {run.repeat}) is void: {run.void}"


def _nothing_served(pairs: Sequence[Pair]) -> Iterator[str]:
    """A baseline that finished nothing is no reference; the reasons say what to change."""
    for base, _ in pairs:
        if base.offered and not base.outcomes.get("finished"):
            why = join([f"{count} {reason}" for reason, count in base.reasons.items()])
            yield f"repeat {base.repeat}: {base.arm} finished none of {base.offered} requests ({why})"


def _plans(pairs: Sequence[Pair]) -> Iterator[str]:
    for base, candidate in pairs:
        if base.plan_digest != candidate.plan_digest:
            yield (
                f"repeat {base.repeat}: the arrival plans differ ({short(base.plan_digest)} and "
                f"{short(candidate.plan_digest)})"
            )
        if base.measured != candidate.measured or base.offered != candidate.offered:
            yield (
                f"repeat {base.repeat}: measured requests differ ({base.measured} of {base.offered} and "
                f"{candidate.measured} of {candidate.offered})"
            )


def _rates(pairs: Sequence[Pair]) -> Iterator[str]:
    """The plan of an imported run has no times in it: what was asked at which rate is compared here."""
    for base, candidate in pairs:
        rates = [offered_rps(run) for run in (base, candidate) if run.level == "imported"]
        if len(rates) < 2 or rates[0] is None or rates[1] is None:
            continue
        if abs(rates[1] - rates[0]) > RATE_TOLERANCE * rates[0]:
            shown = f"{digits(rates[0])} and {digits(rates[1])} requests/s"
            yield f"repeat {base.repeat}: the loads differ: requests were sent at {shown}"


def offered_rps(run: RunSummary) -> float | None:
    """At how many requests a second a run was asked; None where nobody set that."""
    figure = run.metrics.get("offered_rps")
    return None if figure is None else figure.value


def _fields(pairs: Sequence[Pair]) -> Iterator[str]:
    """Both arms of a pair are records of one form."""
    for base, candidate in pairs:
        apart = sorted(base.metrics.keys() ^ candidate.metrics.keys())
        if apart:
            yield f"repeat {base.repeat}: only one arm has the figures {', '.join(apart[:5])}"


def _targets(pairs: Sequence[Pair]) -> list[str]:
    """Only the policy is the declared variable."""
    differ = any(base.target != candidate.target for base, candidate in pairs)
    return ["the targets differ; only the policy was declared to"] if differ else []


def _machines(pairs: Sequence[Pair]) -> list[str]:
    """Level and machine must be equal."""
    found: set[str] = set()
    for base, candidate in pairs:
        if base.level != candidate.level:
            found.add(f"the evidence levels differ ({base.level} and {candidate.level})")
        keys = [
            key
            for key in sorted(base.fingerprint.keys() | candidate.fingerprint.keys())
            if key != NOTES and base.fingerprint.get(key) != candidate.fingerprint.get(key)
        ]
        if keys:
            shown = [f"{key} {base.fingerprint.get(key)} and {candidate.fingerprint.get(key)}" for key in keys]
            found.add(f"the machines differ: {join(shown)}")
    return sorted(found)


def _conditions_vary(pairs: Sequence[Pair]) -> Iterator[str]:
    """A conclusion holds for the conditions that it names, so that all its pairs were made under the same ones."""
    first = _circumstances(pairs[0][0])
    for base, _ in pairs[1:]:
        here = _circumstances(base)
        apart = [key for key in sorted(first.keys() | here.keys()) if first.get(key) != here.get(key)]
        if apart:
            shown = [f"{key} {first.get(key)} and {here.get(key)}" for key in apart]
            yield (
                f"repeats {pairs[0][0].repeat} and {base.repeat} were made under different conditions ({join(shown)}); "
                "a conclusion names one machine and one target"
            )


def _circumstances(run: RunSummary) -> dict[str, object]:
    """What a conclusion from a run is bound to."""
    machine = {key: value for key, value in run.fingerprint.items() if key != NOTES}
    return {**machine, "level": run.level, "target": run.target}


def _quality(pairs: Sequence[Pair]) -> Iterator[str]:
    """Where both arms degrade requests, they declare the same quality of such answers."""
    for base, candidate in pairs:
        old, new = (dict(run.policy.get("admission") or {}).get("degrade_quality") for run in (base, candidate))
        if old is not None and new is not None and old != new:
            yield f"repeat {base.repeat}: the declared quality of degraded answers differs ({old} and {new})"


def _cache(pairs: Sequence[Pair]) -> Iterator[str]:
    for base, candidate in pairs:
        if base.initial_cache_blocks != candidate.initial_cache_blocks:
            yield (
                f"repeat {base.repeat}: the prefix cache held {base.initial_cache_blocks} blocks at the start of "
                f"{base.arm} and {candidate.initial_cache_blocks} of {candidate.arm}; reset or prime both alike"
            )


def _lengths(pairs: Sequence[Pair]) -> Iterator[str]:
    for base, candidate in pairs:
        same_finished = base.outcomes.get("finished") == candidate.outcomes.get("finished") == base.offered
        unequal = base.lengths_digest != candidate.lengths_digest
        if same_finished and unequal and not _nearly_equal_lengths(base, candidate):
            yield f"repeat {base.repeat}: received output lengths differ, which the declared variable cannot explain"


def _nearly_equal_lengths(base: RunSummary, candidate: RunSummary) -> bool:
    """Elsewhere lengths are not forced, so that equal systems differ a little; it becomes a condition then."""
    free = base.level in FREE_LENGTHS and candidate.level in FREE_LENGTHS
    return free and abs(candidate.output_tokens - base.output_tokens) <= LENGTH_TOLERANCE * base.output_tokens


def _outputs(pairs: Sequence[Pair], outputs: Outputs | None) -> Iterator[str]:
    for base, candidate in pairs:
        if None in (base.outputs_digest, candidate.outputs_digest) or base.outputs_digest == candidate.outputs_digest:
            continue
        if outputs is not None:
            different = unequal_outputs(outputs(base.run), outputs(candidate.run))
            if different:
                shown = ", ".join(str(request) for request in different[:5])
                yield f"repeat {base.repeat}: outputs of {len(different)} requests differ beyond ties ({shown})"
        elif base.outcomes == candidate.outcomes and not (base.ties or candidate.ties):
            yield f"repeat {base.repeat}: outputs differ and no near-tie of logits explains it"


def unequal_outputs(one: Mapping[int, Output], other: Mapping[int, Output]) -> list[int]:
    """Requests answered in both whose tokens first differ at a place that neither reported as a near-tie.

    After the first reported tie at which they part, two greedy continuations are different texts.
    """
    found = []
    for request in sorted(one.keys() & other.keys()):
        mine, theirs = one[request], other[request]
        if len(mine.tokens) != len(theirs.tokens):
            found.append(request)
            continue
        tokens = zip(mine.tokens, theirs.tokens, strict=True)
        first = next((place for place, (left, right) in enumerate(tokens) if left != right), None)
        if first is not None and first not in mine.ties and first not in theirs.ties:
            found.append(request)
    return found


def _no_effect(pairs: Sequence[Pair], change: Difference, *, kind: str) -> Iterator[str]:
    """A parameter that never changed a decision has shown no effect, so no result can be credited to it.

    In a sweep one without effect at a low load may have it at a higher one; on kernels how a step is executed changes
    time and no decision.
    """
    if change.none or kind not in ("modelled", "torch") or (kind == "torch" and change.sections == ["execution"]):
        return
    digests = [(base.decisions_digest, candidate.decisions_digest) for base, candidate in pairs]
    if all(old is not None and old == new for old, new in digests):
        yield f"{change.sentence()}: not one decision of any step differed, so the change took no effect at this load"


def identical_outputs(runs: Sequence[RunSummary], outputs: Outputs | None) -> str:
    """In words: whether all runs of a plan gave the same tokens."""
    digests = {(run.plan_digest, run.outputs_digest) for run in runs}
    if all(run.outputs_digest is None for run in runs):
        return "not applicable: there are no token ids in the evidence"
    if len(digests) == len({run.plan_digest for run in runs}):
        return "equal in every run, token for token"
    ties = sum(run.ties for run in runs)
    if outputs is None:
        return f"differ between runs; {ties} near-ties of logits were reported and not compared place by place"
    first = next(run for run in runs if run.outputs_digest is not None)
    others = [run for run in runs if run.plan_digest == first.plan_digest and run is not first]
    different = {request for run in others for request in unequal_outputs(outputs(first.run), outputs(run.run))}
    if different:
        return f"differ beyond ties in {len(different)} requests"
    return f"equal up to {ties} reported near-ties of logits"


def completion(run: RunSummary) -> float:
    """Share of offered measured requests that finished."""
    figure = run.metrics.get("completion_share")
    if figure is None or figure.value is None:
        return run.outcomes.get("finished", 0) / max(run.offered, 1)
    return figure.value


def completion_falls(pairs: Sequence[Pair], *, exact: bool, confidence: float) -> bool:
    """Whether fewer of the candidate's requests surely finish."""
    evidence = changes_of(pairs, lambda run: run.metrics.get("completion_share"), exact=exact)
    if evidence.missing:
        return False
    return evidence.bounds(confidence)[1] < 0


def unfinished(runs: Sequence[RunSummary]) -> str:
    """Why requests did not finish, the most frequent reasons first, in brackets; empty where none is known."""
    reasons = Counter[str]()
    for run in runs:
        reasons.update(run.reasons)
    shown = [f"{count} {reason}" for reason, count in reasons.most_common(MOST_REASONS)]
    return f" ({join(shown)})" if shown else ""


def short(digest: str) -> str:
    """A digest short enough for a sentence."""
    return f"{digest[:4]}..{digest[-2:]}" if len(digest) > 8 else digest
