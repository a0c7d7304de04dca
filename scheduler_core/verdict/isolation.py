"""Isolation: how much longer one tenant's or tier's tail gets when others send more, and which of two arms shields it.

Both runs of a pair hold exactly the same requests of that tenant or tier; only the others differ. The figure of an arm
is the ratio of the tails, with more others / with fewer, over repeats. Two arms are compared by the ratio of those
ratios, guarded by the tail itself (an arm that is slow anyway would feel little) and by everybody's goodput.
"""

import math
from collections.abc import Mapping, Sequence

from scheduler_core.evidence.schema import Figure, RunSummary
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.isolation import times_words
from scheduler_core.verdict.comparable import identical_outputs, obstacles, usable
from scheduler_core.verdict.decision import Ruling, rule
from scheduler_core.verdict.gates import LEAST_PAIRS, Claim, judge
from scheduler_core.verdict.layers import difference
from scheduler_core.verdict.pairs import Changes, Pair, bounded, changes, changes_of, noise_free, relative
from scheduler_core.verdict.schema import (
    EXIT_CODES,
    EXIT_NOT_COMPARABLE,
    SUBMIT,
    ArmIsolation,
    Decision,
    Gate,
    Interval,
    IsolationVerdict,
    NextStep,
    Verdict,
)
from scheduler_core.verdict.single_instance import held_back, single_arm_first
from scheduler_core.verdict.wording import amount, percent, within

RATIO = "isolation_ratio"
GUARDS = {"goodput_rps": -0.02}
TAIL_MARGIN = 0.05

Points = Mapping[float, Sequence[RunSummary]]


def decide_isolation(spec: ExperimentSpec, points: Points) -> Verdict:
    """The verdict of an isolation experiment from its runs by the others' load: one part for each candidate."""
    candidates: list[str | None] = [arm for arm in spec.arms if arm != spec.baseline]
    parts = [_Isolation(spec, points, candidate).result() for candidate in candidates or [None]]
    return Verdict(
        experiment=spec.name,
        comparisons=[],
        isolations=parts,
        identical_outputs=identical_outputs([run for runs in points.values() for run in runs if run.complete], None),
        exit_code=min(part.exit_code for part in parts),
    )


class _Isolation:
    """One baseline and at most one candidate, each with fewer and with more others."""

    def __init__(self, spec: ExperimentSpec, points: Points, candidate: str | None) -> None:
        assert spec.isolation is not None  # asked for isolation only
        self.spec, self.asked = spec, spec.isolation
        self.names = [spec.baseline, *([candidate] if candidate else [])]
        self.censored = self.asked.metric.replace("_ms", "_censored_ms")
        fewer, more = (points.get(float(times), ()) for times in self.asked.others)
        self.runs = [*fewer, *more]
        self.exact = all(noise_free(run) for run in self.runs)
        self.pairs = {name: _pairs(usable(fewer, name), usable(more, name)) for name in self.names}
        self.shifts = {name: self._changes(list(self.pairs[name].values())) for name in self.names}

    def result(self) -> IsolationVerdict:
        arms = [self._arm(name) for name in self.names]
        if len(arms) == 1:
            return self._verdict(arms, None, f"{arms[0].sentence}; one arm shows isolation, not a gain")
        hindered = self._obstacles()
        if hindered:
            return self._verdict(arms, None, f"not comparable: {hindered[0]}", hindered=hindered)
        gates = judge(self._claims(), self.spec.goal.confidence)
        ruling = rule(gates[0], gates[1:], pairs=len(self._shared()), exact=self.exact)
        compared = [run for pairs in self.pairs.values() for pair in pairs.values() for run in pair]
        ruling = held_back(ruling, compared, self.runs)
        return self._verdict(arms, ruling, f"{ruling.decision}: {ruling.reason}; {arms[1].sentence}", gates=gates)

    def _changes(self, pairs: Sequence[Pair]) -> Changes:
        return changes_of(pairs, self._tail, exact=self.exact)

    def _tail(self, run: RunSummary) -> Figure | None:
        """The tail of the tenant or tier; a run that holds nobody else is all of it."""
        of_class = run.classes.get(self.asked.words)
        return (of_class.metrics if of_class is not None else run.metrics).get(self.censored)

    def _arm(self, name: str) -> ArmIsolation:
        found = self.shifts[name]
        fewer, more = (times_words(times) for times in self.asked.others)
        start = f"{name}: {self.asked.metric} of {self.asked.words}"
        if found.missing or not found.finite:
            why = found.missing or "too many requests did not finish"
            return ArmIsolation(arm=name, fewer=None, more=None, shift=None, interval=None,
                                sentence=f"{start} cannot be compared: {why}")  # fmt: skip
        interval = None
        if len(found.logs) > 1 and not self.exact:
            low, high = (bounded(relative(end)) for end in found.bounds(self.spec.goal.confidence))
            interval = Interval(low=low, high=high, confidence=self.spec.goal.confidence)
        shown = f"{amount(found.baseline, 'ms')} {fewer}, {amount(found.candidate, 'ms')} {more}"
        bracket = f" {within(interval)}" if interval else ", exact" if self.exact else ""
        return ArmIsolation(
            arm=name, fewer=found.baseline, more=found.candidate, shift=bounded(found.change), interval=interval,
            sentence=f"{start} {shown}: {percent(found.change)}{bracket}",
        )  # fmt: skip

    def _claims(self) -> list[Claim]:
        """The ratio of the arms' ratios as primary; the tail beside the others, and goodput, as guards."""
        base, other = ([self.pairs[name][repeat] for repeat in self._shared()] for name in self.names)
        before, after = (self._changes(pairs) for pairs in (base, other))
        missing = before.missing or after.missing
        if missing:
            ratio = Changes((), None, None, exact=self.exact, missing=missing)
        else:
            logs = tuple(later - first for first, later in zip(before.logs, after.logs, strict=True))
            old, new = (math.exp(side.mean) if side.finite else None for side in (before, after))
            ratio = Changes(logs, old, new, exact=self.exact)
        beside: list[Pair] = [(old[1], new[1]) for old, new in zip(base, other, strict=True)]
        return [
            Claim(RATIO, "primary", self.spec.goal.better_by, ratio),
            Claim(self.asked.metric, "guard", TAIL_MARGIN, self._changes(beside)),
            *(Claim(name, "guard", margin, changes(beside, name, exact=self.exact)) for name, margin in GUARDS.items()),
        ]

    def _shared(self) -> list[int]:
        """Repeats that are complete in both arms."""
        return sorted(set.intersection(*(set(pairs) for pairs in self.pairs.values())))

    def _obstacles(self) -> list[str]:
        """What hinders the comparison of the arms, with fewer or with more others."""
        if not self._shared():
            return ["no repeat is complete in both arms, with fewer and with more others"]
        base, other = ([self.pairs[name][repeat] for repeat in self._shared()] for name in self.names)
        change = difference(base[0][0].policy, other[0][0].policy)
        found: dict[str, None] = {}
        for place, times in enumerate(self.asked.others):
            pairs: list[Pair] = [(old[place], new[place]) for old, new in zip(base, other, strict=True)]
            for text in obstacles(pairs, change, kind="sweep", outputs=None):
                found.setdefault(f"{times_words(times)}: {text}")
        return list(found)

    def _steps(self, ruling: Ruling | None) -> list[NextStep]:
        """More repeats while the answer is open."""
        first = single_arm_first(self.spec, ruling) if ruling is not None else None
        if first is not None:
            return [first]
        count = max(LEAST_PAIRS, 2 * self.spec.repeats)
        if ruling is None or ruling.decision is not Decision.TUNE or count > 100:
            return []
        form = {**self.spec.model_dump(mode="json", exclude_none=True), "repeats": count}
        because = "the interval of the ratio narrows with the number of repeats"
        return [NextStep(title=f"{count} repeats", because=because, experiment=form,
                         command=SUBMIT)]  # fmt: skip

    def _verdict(
        self,
        arms: Sequence[ArmIsolation],
        ruling: Ruling | None,
        headline: str,
        *,
        gates: Sequence[Gate] = (),
        hindered: Sequence[str] = (),
    ) -> IsolationVerdict:
        fewer, more = (times_words(times) for times in self.asked.others)
        return IsolationVerdict(
            baseline=self.names[0],
            candidate=self.names[1] if len(self.names) > 1 else None,
            of=self.asked.words,
            metric=self.asked.metric,
            others=list(self.asked.others),
            repeats=min(len(pairs) for pairs in self.pairs.values()),
            arms=list(arms),
            decision=ruling.decision if ruling else None,
            headline=headline,
            obstacles=list(hindered),
            gates=list(gates),
            conditions=[
                f"the requests of {self.asked.words} are the same {fewer} and {more}",
                "a request that did not finish is infinitely late",
            ],
            next_steps=self._steps(ruling),
            exit_code=EXIT_CODES[ruling.decision] if ruling else EXIT_NOT_COMPARABLE,
        )


def _pairs(fewer: Mapping[int, RunSummary], more: Mapping[int, RunSummary]) -> dict[int, Pair]:
    """Runs of one arm, with fewer and with more others, by repeat."""
    return {repeat: (fewer[repeat], more[repeat]) for repeat in sorted(fewer.keys() & more.keys())}
