"""From the runs of an experiment to its verdict."""

from collections.abc import Sequence

from scheduler_core.evidence.schema import RunSummary
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.goal import GoalSpec
from scheduler_core.verdict.attribution import effects, why
from scheduler_core.verdict.comparable import (
    Outputs,
    completion,
    completion_falls,
    identical_outputs,
    named,
    obstacles,
    short,
    unfinished,
    usable,
)
from scheduler_core.verdict.conditions import conditions
from scheduler_core.verdict.costs import costs
from scheduler_core.verdict.decision import Ruling, further_look, rule
from scheduler_core.verdict.diagnosis import diagnose
from scheduler_core.verdict.gates import Claim, claims, judge
from scheduler_core.verdict.layers import Difference, difference
from scheduler_core.verdict.next_steps import next_steps, one_layer_at_a_time, with_findings
from scheduler_core.verdict.pairs import Pair, noise_free
from scheduler_core.verdict.question import Question
from scheduler_core.verdict.schema import (
    EXIT_CODES,
    EXIT_NOT_COMPARABLE,
    Comparison,
    Decision,
    Gate,
    NextStep,
    Verdict,
)
from scheduler_core.verdict.sequential import look_at
from scheduler_core.verdict.single_instance import held_back
from scheduler_core.verdict.watches import watches
from scheduler_core.verdict.wording import percent

GOODPUT_MARGIN = -0.02  # guard added where completion differs, so that dropping work never wins


def decide(spec: ExperimentSpec, runs: Sequence[RunSummary], *, outputs: Outputs | None = None) -> Verdict:
    """Compare every candidate arm of ``spec`` with its baseline.

    ``runs`` are the summaries of runs that ended, any order, any attempts; runs that are not there count as failed.
    ``outputs`` reads the token ids of a run by its id, so that differing digests can be compared up to ties.
    """
    return answer(Question.of(spec), runs, outputs=outputs)


def decide_imported(name: str, runs: Sequence[RunSummary], *, baseline: str, goal: GoalSpec | None = None) -> Verdict:
    """Compare the arms of runs that were made elsewhere; the same rules, and no next experiment to fill in."""
    candidates = tuple(dict.fromkeys(run.arm for run in runs if run.arm != baseline))
    question = Question(name, baseline, candidates, goal or GoalSpec(), len({run.repeat for run in runs}), "imported")
    return answer(question, runs)


def answer(question: Question, runs: Sequence[RunSummary], *, outputs: Outputs | None = None) -> Verdict:
    """The verdict on ``question``."""
    comparisons = [_Comparing(question, runs, name, outputs).result() for name in question.candidates]
    codes = [comparison.exit_code for comparison in comparisons]
    return Verdict(
        experiment=question.name,
        comparisons=comparisons,
        identical_outputs=identical_outputs([run for run in runs if run.complete], outputs),
        exit_code=min(codes, default=EXIT_NOT_COMPARABLE),
    )


class _Comparing:
    """One candidate against the baseline: the evidence, gathered once."""

    def __init__(self, question: Question, runs: Sequence[RunSummary], candidate: str, outputs: Outputs | None) -> None:
        self.question = question
        self.candidate = candidate
        self.outputs = outputs
        self.runs = runs
        self.base_runs = usable(runs, question.baseline)
        self.candidate_runs = usable(runs, candidate)
        repeats = sorted(self.base_runs.keys() & self.candidate_runs.keys())
        self.pairs: list[Pair] = [(self.base_runs[repeat], self.candidate_runs[repeat]) for repeat in repeats]
        self.exact = bool(self.pairs) and all(noise_free(run) for pair in self.pairs for run in pair)
        self.change = self._difference()

    def result(self) -> Comparison:
        """The comparison, whatever state the evidence is in."""
        if not self.pairs:
            return self._without_pairs()
        found = obstacles(self.pairs, self.change, kind=self.question.kind, outputs=self.outputs)
        if found:
            return self._comparison(obstacles=found, headline=f"not comparable: {found[0]}")
        return self._decided()

    def _difference(self) -> Difference:
        if self.pairs:
            base, candidate = self.pairs[0]
            return difference(base.policy, candidate.policy, (base.deployment, candidate.deployment))
        if self.question.spec is None:
            return difference({"policy": self.question.baseline}, {"policy": self.candidate})
        arms = self.question.spec.arms
        return difference(arms[self.question.baseline].canonical(), arms[self.candidate].canonical())

    def _without_pairs(self) -> Comparison:
        if self.base_runs and not self.candidate_runs:
            reason = "runnability: no run of the candidate completed while the baseline's did"
            ruling = Ruling(Decision.REJECT, reason)
            return self._comparison(ruling=ruling, headline=f"reject: {reason}")
        reason = named(
            "R2",
            f"the baseline {self.question.baseline} has no completed run"
            if not self.base_runs
            else "no repeat has a completed run of both arms",
        )
        return self._comparison(obstacles=[reason], headline=f"not comparable: {reason}")

    def _decided(self) -> Comparison:
        goal = self.question.goal
        look = look_at(goal.looks, len(self.pairs), 1 - goal.confidence) if goal.looks else None
        if look is not None:
            self.pairs = self.pairs[: look.pairs]  # pairs beyond the look wait for the next one
        confidence = 1 - look.alpha if look is not None else goal.confidence
        fallen = completion_falls(self.pairs, exact=self.exact, confidence=confidence)
        found = claims(goal, self.pairs, exact=self.exact, extra=self._extra_guards())
        gates = judge(found, confidence)
        watched = watches(self.pairs, exact=self.exact)
        if fallen and not self.change.explains_dropping:
            shares = [sum(completion(pair[side]) for pair in self.pairs) / len(self.pairs) for side in (0, 1)]
            reason = f"runnability: completion falls from {shares[0] * 100:.1f} % to {shares[1] * 100:.1f} %"
            reason += unfinished([pair[1] for pair in self.pairs])
            ruling = Ruling(Decision.REJECT, reason, ("completion_share",))
        else:
            ruling = rule(gates[0], [*gates[1:], *watched], pairs=len(self.pairs), exact=self.exact)
        if goal.looks and look is None and not self.exact:
            ruling = Ruling(Decision.TUNE, f"the first look needs {goal.looks[0]} pairs, there are {len(self.pairs)}")
        ruling = held_back(ruling, [run for pair in self.pairs for run in pair], self.runs)
        return self._comparison(ruling=ruling, gates=[*gates, *watched], found=found)

    def _steps(self, ruling: Ruling, found: Sequence[Claim], gates: Sequence[Gate]) -> list[NextStep]:
        policy = self.pairs[0][1].policy
        steps = next_steps(self.question, ruling, self.candidate, policy, found, gates)
        split = one_layer_at_a_time(self.question, self.change, self.candidate)
        return [*steps, *([split] if split else [])]

    def _extra_guards(self) -> dict[str, float]:
        differ = any(completion(base) != completion(candidate) for base, candidate in self.pairs)
        return {"goodput_rps": GOODPUT_MARGIN} if differ else {}

    def _comparison(
        self,
        *,
        ruling: Ruling | None = None,
        obstacles: Sequence[str] = (),
        headline: str = "",
        gates: Sequence[Gate] = (),
        found: Sequence[Claim] = (),
    ) -> Comparison:
        goal = self.question.goal
        decided = bool(gates)
        run = self.pairs[0][0] if self.pairs else next(iter(self.base_runs.values()), None)
        findings = diagnose(self.question, self.candidate, self.pairs) if decided else []
        steps = self._steps(ruling, found, gates) if ruling and decided else []
        return Comparison(
            baseline=self.question.baseline,
            candidate=self.candidate,
            comparable=not obstacles,
            obstacles=list(obstacles),
            decision=ruling.decision if ruling else None,
            headline=headline or _headline(ruling, gates),
            pairs=len(self.pairs),
            requests_per_run=run.measured if run else 0,
            plan_digest=short(run.plan_digest) if run else "",
            gates=list(gates),
            effects=effects(self.pairs, self.change, exact=self.exact, confidence=goal.confidence) if decided else [],
            why=why(self.pairs, self.change) if decided else [],
            costs=costs(self.pairs) if decided else [],
            conditions=conditions(self.question, self.pairs, self.change, exact=self.exact, runs=self.runs),
            next_steps=with_findings(steps, findings),
            diagnosis=findings,
            next_look=further_look(goal.looks, len(self.pairs), ruling, gates) if ruling and decided else None,
            exit_code=EXIT_CODES[ruling.decision] if ruling else EXIT_NOT_COMPARABLE,
        )


def _headline(ruling: Ruling | None, gates: Sequence[Gate]) -> str:
    """Decision, the primary's change, and the reason; a broken watch is named here."""
    assert ruling is not None
    primary = gates[0]
    change = f" ({primary.metric} {percent(primary.change)})" if primary.change is not None else ""
    stalled = next((gate.sentence for gate in gates if gate.metric == "stall_share"), "")
    return f"{ruling.decision}: {ruling.reason}{change}" + (f"; {stalled}" if stalled else "")
