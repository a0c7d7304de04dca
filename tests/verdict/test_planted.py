"""A violation of each rule R1 to R40 is planted, and the product says which rule, where, and with which numbers.

`PLANTED` has one entry a rule: what is said of sound evidence, what is said when the violation is in it, and the words
that only the second may hold. A check that said the same of both, or nothing, would fail here.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from controlplane.evidence.services import store_segment
from controlplane.runs.lifecycle import State
from scheduler_core.evidence.lint import lint
from scheduler_core.evidence.metrics.registry import METRICS, registry
from scheduler_core.evidence.schema import Absence, Figure, PoolSummary, RunSummary
from scheduler_core.spec.goal import GoalSpec
from scheduler_core.spec.parse import parse
from scheduler_core.spec.studies import GuidedSpec
from scheduler_core.types.errors import InputError
from scheduler_core.verdict.guided import stage_experiment
from scheduler_core.verdict.load_sweep import decide_sweep
from scheduler_core.verdict.rules import RULES
from scheduler_core.verdict.schema import Comparison, Finding
from tests.controlplane.conftest import make_run, owner, plan  # noqa: F401 - fixtures
from tests.controlplane.test_evidence import written
from tests.evidence.audit.test_audit import LIES, honest
from tests.evidence.played import summarise
from tests.verdict.arms import arms, experiment, summary
from tests.verdict.test_diagnosis import TRIGGERS, find
from tests.verdict.test_rules import BROKEN, REFUSED, WIN, compare, sound


@dataclass(frozen=True)
class Place:
    """Where a violation can be planted: an empty folder, and pytest's own tools."""

    folder: Path
    patch: pytest.MonkeyPatch
    fixture: Callable[[str], Any]


Said = Callable[[Place], str]


@dataclass(frozen=True)
class Planted:
    """``sound`` and ``broken`` give all that is said of each; ``names`` are in the second alone."""

    sound: Said
    broken: Said
    names: tuple[str, ...]


def _audited(lie: str | None) -> Said:
    def say(place: Place) -> str:
        records = honest() if lie is None else LIES[lie][0](honest())
        return _violations(summarise(records, place.folder))

    return say


def _violations(run: RunSummary) -> str:
    return "\n".join(f"{found.rule} | {found.where} | {found.message}" for found in run.audit.violations)


def _lied(lie: str) -> Planted:
    _change, rule, where, message = LIES[lie]
    return Planted(_audited(None), _audited(lie), (rule, where, message))


def _absent_and_there(place: Place) -> str:
    both = Figure(value=0.0, unit="ms", absence=Absence.NOT_MEASURED)
    place.patch.setitem(METRICS, "ttft_p50_ms", replace(METRICS["ttft_p50_ms"], compute=lambda run: both))
    return _violations(summarise(honest(), place.folder))


def _linted(rule: str) -> Planted:
    changed, where, numbers = BROKEN[rule]

    def say(run: RunSummary) -> str:
        return "\n".join(f"{found.rule} | {found.where} | {found.message}" for found in lint(run))

    return Planted(lambda place: say(sound()), lambda place: say(sound(**changed)), (f"{rule} ", where, numbers))


def said(found: Comparison) -> str:
    """A comparison in words."""
    steps = [f"next: {step.title}: {step.because}" for step in found.next_steps]
    effects = [f"effect: {effect.sentence}; credited {effect.credited}" for effect in found.effects]
    return "\n".join([found.headline, *found.obstacles, *found.why, *found.conditions, *effects, *steps])


def _compared(broken: Callable[[], list[RunSummary]], *names: str, won: Callable[[], list[RunSummary]] | None = None) \
        -> Planted:  # fmt: skip
    clean = won or (lambda: arms(WIN))
    return Planted(lambda place: said(compare(clean())), lambda place: said(compare(broken())), names)


def _refused(case: str) -> Planted:
    runs, numbers = REFUSED[case]
    return _compared(runs, f"not comparable: {case.split()[0]}: ", numbers)


def _other_workload() -> list[RunSummary]:
    return [run.model_copy(update={"plan_digest": run.arm * 4}) for run in arms(WIN)]


def _cluster(instances: int) -> PoolSummary:
    return PoolSummary(instances=instances, steps=9, tokens=9, utilisation=0.5, least_busy=0.4, most_busy=0.6,
                       kv_peak_share=0.1)  # fmt: skip


def _on_clusters() -> list[RunSummary]:
    return [run.model_copy(update={"pools": {"workers": _cluster(4)}}) for run in arms(WIN)]


def _on_clusters_with_a_record() -> list[RunSummary]:
    return [*_on_clusters(), summary("single instance", pools={"workers": _cluster(1)})]


def _policy(*, everywhere: bool) -> list[RunSummary]:
    both = {"policy": "vllm_v1", "batch": {"token_budget": 512}, "cache": {"prefix": "none"}}
    return [run.model_copy(update={"policy": both}) if everywhere and run.arm == "candidate" else run
            for run in arms(WIN)]  # fmt: skip


def _without(metric: str) -> list[RunSummary]:
    return [run.model_copy(update={"metrics": {k: v for k, v in run.metrics.items() if k != metric}})
            for run in arms(WIN)]  # fmt: skip


def _with_fairness() -> list[RunSummary]:
    even = Figure(value=0.9, unit="ratio")
    return [run.model_copy(update={"metrics": {**run.metrics, "fairness_jain": even}}) for run in arms(WIN)]


def _on_two_machines() -> list[RunSummary]:
    return [run.model_copy(update={"fingerprint": {"threads": 4 if run.repeat == 3 else 2}}) for run in arms(WIN)]


def _error(call: Callable[[], Any]) -> str:
    try:
        call()
    except (InputError, ValidationError, ValueError) as error:
        return str(error)
    return ""


def _goal(rule: str, name: str) -> Planted:
    fair, foul = ({"primary": primary} for primary in ("ttft_p95_ms", name))
    return Planted(lambda place: _error(lambda: parse(GoalSpec, fair)), lambda place: _error(
        lambda: parse(GoalSpec, foul)), (rule, "primary", name))  # fmt: skip


def _diagnosed(rule: str, *numbers: str) -> Planted:
    changed, base, fields = TRIGGERS[rule]

    def say(found: list[Finding]) -> str:
        return "\n".join(f"{one.rule} {one.symptom} | {'; '.join([*one.evidence, *one.thresholds])}" for one in found)

    return Planted(lambda place: say(find({})), lambda place: say(find(changed, base, **fields)), (rule, *numbers))


def _answer(decision: str) -> str:
    form = {**compare(arms(WIN)).canonical(), "decision": decision}
    return _error(lambda: Comparison.model_validate(form))


def _class(problem: str) -> str:
    (found,) = find(*TRIGGERS["G1"][:2], **TRIGGERS["G1"][2])
    return _error(lambda: Finding.model_validate({**found.canonical(), "problem": problem}))


def _stage(accepted: bool) -> str:
    asked = parse(GuidedSpec, {"name": "g", "workload": experiment().workload.canonical()})
    return _error(lambda: stage_experiment(asked, 1, asked.start if accepted else None))


def _twice(formula: str | None) -> str:
    one = METRICS["ttft_p50_ms"]
    return _error(lambda: registry(one, *([replace(one, formula=formula)] if formula else [])))


def _sweep(*names: str) -> str:
    spec = experiment(sweep={"loads": [2, 4, 6]}, arms={name: {"policy": "vllm_v1"} for name in names})
    runs = {load: [summary(name, repeat) for name in names for repeat in range(2)] for load in (2.0, 4.0, 6.0)}
    return decide_sweep(spec, runs).sweeps[0].headline


def _written_twice(second: str) -> Said:
    def say(place: Place) -> str:
        run = place.fixture("make_run")(State.RUNNING)
        where: dict[str, Any] = {"run_id": run.pk, "attempt": 1, "number": 3, "records": 1}
        store_segment(**where, **written(place.folder))
        return _error(lambda: store_segment(**where, **written(place.folder, second)))

    return say


def _queue_alone() -> list[RunSummary]:
    return arms(WIN, changed={"queue_wait_mean_ms": 300.0, "e2e_mean_ms": 1250.0})


PLANTED: dict[str, Planted] = {
    "R1": _refused("R1 plan"),
    "R2": _refused("R2"),
    "R3": _goal("R3", "input_transfer_mean_ms"),
    "R4": _lied("hole"),
    "R5": _linted("R5"),
    "R6": _compared(_queue_alone, "queue wait rose from 50 ms to 300 ms", "at equal compute (940 ms and 940 ms)"),
    "R7": _compared(_other_workload, "not comparable: R1: repeat 0", "plans differ (base..ne and cand..te)"),
    "R8": _lied("anew"),
    "R9": _linted("R9"),
    "R10": _linted("R10"),
    "R11": _linted("R11"),
    "R12": _diagnosed("R12", "no gain", "overlap_ratio 80 %","e2e_mean_ms 1,000 ms -> 1,005 ms", "equal_change 0.02"),
    "R13": _diagnosed("R13", "only waiting", "running_max 8 requests -> 16 requests", "more_requests 0.25"),
    "R14": _diagnosed("R14", "gain not explained", "exposed_comm_ms 50 ms -> 50.5 ms", "1,000 ms -> 800 ms"),
    "R15": _compared(lambda: _policy(everywhere=True), "not to one layer", "cache.prefix default -> none"),
    "R16": _goal("R16", "pool_utilisation"),
    "R17": Planted(lambda place: _stage(True), lambda place: _stage(False), ("cache starts from what the stage",)),
    "R18": _compared(lambda: arms(WIN), "fairness_jain: no figure (", won=_with_fairness),
    "R19": _linted("R19"),
    "R20": Planted(lambda place: _answer("tune"), lambda place: _answer("maybe"), ("decision", "'maybe'", "'accept'")),
    "R21": _refused("R21"),
    "R22": Planted(lambda place: _twice(None), lambda place: _twice("something else"), ("R22", "ttft_p50_ms")),
    "R23": _compared(_on_clusters, "tune: R23: ", "run baseline-0", "4 instances", won=_on_clusters_with_a_record),
    "R24": Planted(lambda place: _class("compute"), lambda place: _class("network"), ("problem", "'network'")),
    "R25": _lied("early"),
    "R26": Planted(_audited(None), _absent_and_there, ("R26 typed absence", "ttft_p50_ms", "value 0.0, absence not")),
    "R27": Planted(lambda place: _sweep("baseline", "other"), lambda place: _sweep("baseline"),
                   ("load sensitivity of baseline, not a gain",)),
    "R28": _refused("R28"),
    "R29": _linted("R29"),
    "R30": _refused("R30"),
    "R31": _linted("R31"),
    "R32": _linted("R32"),
    "R33": Planted(_written_twice("{}"), _written_twice("[]"), ("R33: segment 3 of run ", "attempt 1", "44136fa355b3")),
    "R34": _compared(lambda: arms(WIN[:4]), "tune: not enough evidence: 4 pairs of runs, at least 5"),
    "R35": _linted("R35"),
    "R36": _compared(lambda: _without("goodput_rps"), "tune: evidence is missing for goodput_rps"),
    "R37": _compared(_on_two_machines, "not comparable: R37: repeats 0 and 3", "threads 2 and 4"),
    "R38": _compared(lambda: arms(WIN, changed={"tpot_p95_censored_ms": 12.0}), "reject: ", "at the cost of tpot_p95"),
    "R39": _refused("R39 lengths"),
    "R40": _refused("R40 machine"),
}  # fmt: skip


def test_every_rule_has_a_violation() -> None:
    assert list(PLANTED) == list(RULES)


@pytest.mark.django_db
@pytest.mark.parametrize("rule", PLANTED)
def test_a_planted_violation_is_named_and_sound_evidence_is_not(
    rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, settings: Any
) -> None:
    settings.MEDIA_ROOT = tmp_path / "storage"
    planted = PLANTED[rule]
    with monkeypatch.context() as patch:
        places = [Place(tmp_path / name, patch, request.getfixturevalue) for name in ("sound", "broken")]
        for place in places:
            place.folder.mkdir()
        sound_words, broken_words = planted.sound(places[0]), planted.broken(places[1])
    assert [name for name in planted.names if name not in broken_words] == [], broken_words
    assert [name for name in planted.names if name in sound_words] != [*planted.names], "the check is vacuous"


@pytest.mark.parametrize("rule", ["R1", "R7", "R28", "R37", "R39", "R40"])
def test_what_cannot_be_compared_has_no_decision(rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = {"R7": _other_workload, "R37": _on_two_machines, "R1": REFUSED["R1 plan"][0], "R28": REFUSED["R28"][0],
             "R39": REFUSED["R39 lengths"][0], "R40": REFUSED["R40 machine"][0]}  # fmt: skip
    found = compare(cases[rule]())
    assert (found.decision, found.comparable, found.effects, found.diagnosis, found.gates) == (None, False, [], [], [])


def test_a_gain_of_several_instances_waits_for_one_and_the_form_to_get_it_is_filled_in() -> None:
    """R23: refused without the record, accepted beside it; the next experiment holds one more arm, on one instance."""
    cluster = {"modelled": {"topology": {"groups": {"a": {"count": 2}, "b": {"count": 2}}}}}
    policies = {name: {"policy": "vllm_v1", "batch": {"token_budget": budget}, "pools": {"layout": "replicas"}}
                for name, budget in (("baseline", 2048), ("candidate", 512))}  # fmt: skip
    found = compare(_on_clusters(), target=cluster, arms=policies)
    assert found.decision == "tune" and found.exit_code == 10
    (step,) = found.next_steps
    assert step.experiment is not None
    assert step.experiment["arms"]["single instance"]["pools"] == {"layout": "replicas", "hold": {"a": 1, "b": 0}}
    assert experiment(**{key: step.experiment[key] for key in ("target", "arms")}).arms.keys() == {
        "baseline", "candidate", "single instance"}  # fmt: skip
    accepted = compare(_on_clusters_with_a_record(), target=cluster, arms=policies)
    assert accepted.decision == "accept"
    assert "R23: beside a record of a single instance on this plan, arm single instance" in accepted.conditions
    assert (
        compare([*_on_clusters(), summary("other", plan_digest="x")], target=cluster, arms=policies).decision == "tune"
    )
