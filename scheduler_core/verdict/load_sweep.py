"""Load sweeps: how much each arm carries at its objectives, where it bends, and which of two carries more.

A sweep of one arm shows load sensitivity, not a gain (R27). A paired sweep, both arms at three or more common loads,
is the strongest comparison: near the knee a small change of capacity moves a tail by tens of percent, so the ratio of
capacities is compared, not the tails, guarded by goodput per device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler_core.evidence.schema import RunSummary
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.loads import LEAST_LOADS, load_unit
from scheduler_core.types.errors import InputError, Problem
from scheduler_core.verdict.capacity import SustainedLoad, arm_capacity, attained, capacity, value
from scheduler_core.verdict.comparable import identical_outputs, obstacles, usable
from scheduler_core.verdict.decision import Ruling, rule
from scheduler_core.verdict.gates import LEAST_PAIRS, Claim, Role, judge
from scheduler_core.verdict.layers import difference
from scheduler_core.verdict.pairs import Changes, Pair, log_ratio, noise_free, typical
from scheduler_core.verdict.schema import (
    EXIT_CODES,
    EXIT_NOT_COMPARABLE,
    SUBMIT,
    Decision,
    Gate,
    NextStep,
    SweepVerdict,
    Verdict,
)
from scheduler_core.verdict.single_instance import held_back, single_arm_first
from scheduler_core.verdict.wording import digits

GOODPUT = "goodput_per_device_rps"
GOODPUT_MARGIN = -0.02

Points = Mapping[float, Sequence[RunSummary]]
Repeats = dict[int, dict[float, RunSummary]]


def decide_sweep(spec: ExperimentSpec, points: Points) -> Verdict:
    """The verdict of a sweep experiment from its runs by load: one part for each candidate, or load sensitivity.

    Raises:
        InputError: an arm completed no run at one of the loads; says which.
    """
    assert spec.sweep is not None  # asked for sweeps only
    candidates: list[str | None] = [arm for arm in spec.arms if arm != spec.baseline]
    asked = SweepQuestion(
        load_unit(spec.workload), spec.sweep.attainment, spec.goal.better_by, spec.goal.confidence, spec
    )
    sweeps = [
        sweep_verdict(points, baseline=spec.baseline, candidate=candidate, asked=asked)
        for candidate in candidates or [None]
    ]
    runs = [run for found in points.values() for run in found if run.complete]
    return Verdict(
        experiment=spec.name,
        comparisons=[],
        sweeps=sweeps,
        identical_outputs=identical_outputs(runs, None),
        exit_code=min(sweep.exit_code for sweep in sweeps),
    )


@dataclass(frozen=True, slots=True)
class SweepQuestion:
    """In which unit loads count, the attainment asked for, the least gain of capacity; ``spec`` for the next form."""

    unit: str = "requests/s"
    attainment: float = 0.95
    better_by: float = 0.05
    confidence: float = 0.95
    spec: ExperimentSpec | None = None


def sweep_verdict(
    points: Points, *, baseline: str, candidate: str | None = None, asked: SweepQuestion | None = None
) -> SweepVerdict:
    """Capacities of the arms over the loads of ``points``, and with a candidate which one carries more.

    Raises:
        InputError: fewer than three loads, or an arm without completed runs at one of them.
    """
    return _Sweep(points, baseline, candidate, asked or SweepQuestion()).result()


class _Sweep:
    """One baseline and at most one candidate over common loads."""

    def __init__(self, points: Points, baseline: str, candidate: str | None, asked: SweepQuestion) -> None:
        self.points = points
        self.asked = asked
        self.names = [baseline, *([candidate] if candidate else [])]
        self.arms = {name: _by_repeat(points, name) for name in self.names}
        self.found = [
            arm_capacity(
                name, self.arms[name], unit=asked.unit, attainment=asked.attainment, confidence=asked.confidence
            )
            for name in self.names
        ]
        shared = set.intersection(*(set(repeats) for repeats in self.arms.values()))
        self.repeats = sorted(shared)
        self.exact = all(noise_free(run) for runs in points.values() for run in runs)

    def result(self) -> SweepVerdict:
        if len(self.names) == 1:
            headline = f"load sensitivity of {self.names[0]}, not a gain: {self.found[0].sentence}"
            return self._verdict(None, headline, steps=self._other_loads())
        hindered = self._obstacles()
        if hindered:
            return self._verdict(None, f"not comparable: {hindered[0]}", hindered=hindered)
        sides = [self._capacities(name) for name in self.names]
        outside = [item for side in sides for item in side if item.resolved != "within"]
        if outside or not self.repeats:
            why = f"{len(outside)} capacities lie outside the loads" if self.repeats else "no repeat has both arms"
            headline = f"not resolved: {why}; sweep from a load that every arm carries to one that none does"
            return self._verdict(Ruling(Decision.TUNE, headline), headline, steps=self._other_loads())
        return self._judged(sides)

    def _judged(self, sides: Sequence[Sequence[SustainedLoad]]) -> SweepVerdict:
        loads = [[item.load for item in side] for side in sides]
        goodputs = [[_mean_goodput(self.arms[name][repeat]) for repeat in self.repeats] for name in self.names]
        gates = judge(
            [
                _claim("concurrency_capacity", "primary", self.asked.better_by, loads, exact=self.exact),
                _claim(GOODPUT, "guard", GOODPUT_MARGIN, goodputs, exact=self.exact),
            ],
            self.asked.confidence,
        )
        ruling = rule(gates[0], gates[1:], pairs=len(self.repeats), exact=self.exact)
        compared = [run for name in self.names for loads in self.arms[name].values() for run in loads.values()]
        ruling = held_back(ruling, compared, [run for runs in self.points.values() for run in runs])
        base, other = self.found
        headline = f"{ruling.decision}: {other.sentence}; {base.sentence}; {ruling.reason}"
        return self._verdict(ruling, headline, gates=gates, steps=self._after(ruling))

    def _capacities(self, name: str) -> list[SustainedLoad]:
        return [capacity(attained(self.arms[name][repeat]), self.asked.attainment) for repeat in self.repeats]

    def _obstacles(self) -> list[str]:
        """What hinders the comparison at any load; that a change shows no effect at a low load is no obstacle."""
        base, other = (self.arms[name] for name in self.names)
        found: dict[str, None] = {}
        for load in sorted(self.points):
            pairs: list[Pair] = [(base[repeat][load], other[repeat][load]) for repeat in self.repeats]
            if pairs:
                change = difference(pairs[0][0].policy, pairs[0][1].policy)
                for text in obstacles(pairs, change, kind="sweep", outputs=None):
                    found.setdefault(f"at {digits(load)} {self.asked.unit}: {text}")
        return list(found)

    def _after(self, ruling: Ruling) -> list[NextStep]:
        """More repeats while the ratio is undecided, else the load where the better arm bends, as an experiment."""
        spec = self.asked.spec
        first = single_arm_first(spec, ruling)
        if first is not None:
            return [first]
        if ruling.decision is Decision.TUNE and spec is not None:
            count = max(LEAST_PAIRS, 2 * len(self.repeats))
            form = _form(spec, {"repeats": count})
            because = "the interval of the capacity ratio narrows with the number of repeats"
            return [NextStep(title=f"{count} repeats", because=because, experiment=form, command=SUBMIT)]
        carried = self.found[0].capacity
        if spec is None or carried is None:
            return []
        load = float(round(carried)) if self.asked.unit == "users" else carried
        form = {**_form(spec, {"sweep": None}), "workload": spec.workload_at(load).model_dump(
            mode="json", exclude_unset=True, exclude_none=True)}  # fmt: skip
        because = "where the baseline just meets its objectives the arms differ most"
        title = f"the arms at {digits(load)} {self.asked.unit}"
        return [NextStep(title=title, because=because, experiment=form, command=SUBMIT)]

    def _other_loads(self) -> list[NextStep]:
        """The same sweep over loads that reach beyond the side on which a capacity was not resolved."""
        spec, loads = self.asked.spec, sorted(self.points)
        wanted = list(loads)
        if any(arm.resolved == "below" for arm in self.found):
            wanted = [loads[0] / 4, loads[0] / 2, *wanted]
        if any(arm.resolved == "above" for arm in self.found):
            wanted = [*wanted, loads[-1] * 2, loads[-1] * 4]
        if spec is None or wanted == loads:
            return []
        if self.asked.unit == "users":
            wanted = [float(load) for load in dict.fromkeys(max(1, round(load)) for load in wanted)]
        form = _form(spec, {"sweep": {"loads": wanted, "attainment": self.asked.attainment}})
        shown = ", ".join(digits(load) for load in wanted)
        because = "a capacity lies outside the loads played"
        return [NextStep(title=f"loads {shown}", because=because, experiment=form, command=SUBMIT)]

    def _verdict(
        self,
        ruling: Ruling | None,
        headline: str,
        *,
        gates: Sequence[Gate] = (),
        steps: Sequence[NextStep] = (),
        hindered: Sequence[str] = (),
    ) -> SweepVerdict:
        shown = ", ".join(digits(load) for load in sorted(self.points))
        met = f"objectives met by {self.asked.attainment * 100:g} % of offered requests"
        return SweepVerdict(
            baseline=self.names[0],
            candidate=self.names[1] if len(self.names) > 1 else None,
            unit=self.asked.unit,
            loads=sorted(self.points),
            attainment=self.asked.attainment,
            repeats=len(self.repeats),
            arms=self.found,
            decision=ruling.decision if ruling else None,
            headline=headline,
            obstacles=list(hindered),
            gates=list(gates),
            conditions=[f"loads {shown} {self.asked.unit}, {met}", "goodput is per device"],
            next_steps=list(steps),
            exit_code=EXIT_CODES[ruling.decision] if ruling else EXIT_NOT_COMPARABLE,
        )


def _by_repeat(points: Points, arm: str) -> Repeats:
    """repeat -> load -> run, repeats that are complete at every load."""
    if len(points) < LEAST_LOADS:
        raise InputError([Problem("loads", f"{len(points)} loads; a sweep needs at least {LEAST_LOADS}")])
    by_load = {load: usable(runs, arm) for load, runs in points.items()}
    empty = [digits(load) for load, runs in by_load.items() if not runs]
    if empty:
        raise InputError([Problem(arm, f"has no completed run at load {', '.join(empty)}")])
    repeats = set.intersection(*(set(runs) for runs in by_load.values()))
    return {repeat: {load: runs[repeat] for load, runs in by_load.items()} for repeat in sorted(repeats)}


def _mean_goodput(run: Mapping[float, RunSummary]) -> float:
    """Over the loads of one repeat; the arms share the loads, so the mean compares like with like."""
    values = [value(summary, GOODPUT) or 0.0 for summary in run.values()]
    return sum(values) / len(values)


def _claim(metric: str, role: Role, margin: float, sides: Sequence[Sequence[float]], *, exact: bool) -> Claim:
    old, new = sides
    unit = "requests/s"
    logs = tuple(log_ratio(before, after, unit) for before, after in zip(old, new, strict=True))
    return Claim(metric, role, margin, Changes(logs, typical(old), typical(new), exact=exact))


def _form(spec: ExperimentSpec, changes: Mapping[str, object]) -> dict[str, object]:
    """The experiment as a form to fill in, with some keys replaced; a key set to None is left out."""
    form = {**spec.model_dump(mode="json", exclude_none=True), **changes}
    return {key: item for key, item in form.items() if item is not None}
