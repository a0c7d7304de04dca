"""R1 to R40: each has a check, and what breaks it makes that very rule speak, with the record and the numbers."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from scheduler_core.evidence.lint import LAWS, lint, linted
from scheduler_core.evidence.metrics.metric import present
from scheduler_core.evidence.metrics.registry import METRICS, registry
from scheduler_core.evidence.schema import Absence, Figure, PoolSummary, RunSummary
from scheduler_core.spec.goal import GoalSpec, MetricName
from scheduler_core.spec.parse import parse
from scheduler_core.spec.studies import GuidedSpec
from scheduler_core.types.errors import InputError
from scheduler_core.types.records import Step
from scheduler_core.verdict.attribution import EFFECT_METRICS
from scheduler_core.verdict.decide import decide
from scheduler_core.verdict.diagnosis import RULES as DIAGNOSES
from scheduler_core.verdict.guided import stage_experiment
from scheduler_core.verdict.load_sweep import decide_sweep
from scheduler_core.verdict.rules import RULES, as_markdown
from scheduler_core.verdict.schema import Comparison, Decision, Finding
from tests.evidence.audit.test_audit import LIES, honest
from tests.evidence.played import summarise
from tests.verdict.arms import DEFAULTS, arms, experiment, summary
from tests.verdict.test_diagnosis import TRIGGERS

WIN = (0.70, 0.71, 0.69, 0.70, 0.70)
DOCS = Path(__file__).parents[2] / "docs" / "evidence.md"


def compare(runs: list[RunSummary], **changed: Any) -> Comparison:
    return decide(experiment(**changed), runs).comparisons[0]


def test_every_rule_has_its_check_and_stands_in_the_docs() -> None:
    assert list(RULES) == [f"R{number}" for number in range(1, 41)]
    assert as_markdown() in DOCS.read_text(encoding="utf-8")
    assert {rule for rule, _ in LAWS} <= {*_quoted(), "offered = outcomes"}


def _quoted() -> set[str]:
    return {part for rule in RULES.values() for part in rule.check.split("`")[1::2]}


# --- audit: records ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lie", "rule"), [("hole", "R4"), ("anew", "R8"), ("early", "R25")], ids=["R4", "R8", "R25"])
def test_a_record_that_breaks_it_is_named(lie: str, rule: str, tmp_path: Path) -> None:
    change, check, where, message = LIES[lie]
    found = summarise(change(honest()), tmp_path).audit.violations
    assert check.split()[0] == rule
    assert {item.rule.split()[0] for item in found if item.rule.startswith("R")} == {rule}
    assert any(item.where == where and message in item.message for item in found)


def test_r26_a_value_with_an_absence_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = Figure(value=0.0, unit="ms", absence=Absence.NOT_MEASURED)
    monkeypatch.setitem(METRICS, "ttft_p50_ms", replace(METRICS["ttft_p50_ms"], compute=lambda run: both))
    (found,) = summarise(honest(), tmp_path).audit.violations
    assert (found.rule, found.where) == ("R26 typed absence", "ttft_p50_ms")
    assert "value 0.0, absence not_measured" in found.message


# --- linter: figures --------------------------------------------------------------------------------------------------


def sound(**changed: Any) -> RunSummary:
    """A run that the linter has nothing against."""
    return summary("baseline", **changed)


def ms(value: float, n: int | None = None) -> Figure:
    return present(value, "ms", n)


BROKEN: dict[str, tuple[dict[str, Any], str, str]] = {
    "R5": ({"metrics": {"tpot_p95_ms": ms(400), "longest_gap_p95_ms": ms(30)}}, "tpot_p95_ms", "longest gap is 30 ms"),
    "R9": ({"metrics": {"exposed_comm_ms": ms(9), "communication_ms": ms(5)}}, "exposed_comm_ms", "is 5 ms"),
    "R10": ({"metrics": {"ttft_mean_ms": ms(100, 60)}, "cold_requests": 4}, "ttft_mean_ms", "only 56 of 60"),
    "R11": ({"metrics": {**{n: ms(v) for n, v in DEFAULTS.items() if n.endswith("mean_ms")},
                         "prefill_mean_ms": ms(90)}}, "e2e_mean_ms", "add up to 1040 ms, elapsed are 1000 ms"),
    "R19": ({"source": "guessed"}, "source", "'guessed' is none of modelled, kernel"),
    "R29": ({"level": "gpu_kernels"}, "level", "level gpu_kernels, but its values are modelled"),
    "R31": ({"level": "external_server", "source": "client", "metrics": {"hit_rate": present(0.9, "share")}},
            "hit_rate", "0.9 without a count"),
    "R32": ({"outcomes": {"finished": 57, "failed": 3}, "reasons": {"failed: decode: no room": 2}}, "failed",
            "3 requests failed, 2 with a reason"),
    "R35": ({"metrics": {"ttft_p99_ms": ms(100, 60)}}, "ttft_p99_ms", "from 60 samples, at least 100"),
    "offered": ({"outcomes": {"finished": 59}}, "outcomes", "60 planned = 59 sent + 0 not sent; 59 sent = 59 finished"),
}  # fmt: skip


@pytest.mark.parametrize("rule", BROKEN)
def test_figures_that_break_a_law_fail_the_audit_and_enter_no_verdict(rule: str) -> None:
    changed, where, numbers = BROKEN[rule]
    assert lint(sound()) == []
    broken = sound(**changed)
    (found,) = lint(broken)
    assert (found.rule.split()[0], found.where) == (rule, where)
    assert numbers in found.message
    run = linted(broken)
    assert not run.audit.passed
    assert found.rule in compare([run, *arms(WIN)[1:]]).headline


# --- comparability ----------------------------------------------------------------------------------------------------


def _of_candidate(**changed: Any) -> list[RunSummary]:
    return [run.model_copy(update=changed) if run.arm == "candidate" else run for run in arms(WIN)]


def _degraded(quality: dict[str, float]) -> list[RunSummary]:
    return [
        run.model_copy(update={"policy": {**run.policy, "admission": {"degrade_quality": quality[run.arm]}}})
        for run in arms(WIN)
    ]


def _one_field_less(runs: list[RunSummary]) -> list[RunSummary]:
    fewer = {name: value for name, value in runs[1].metrics.items() if name != "e2e_mean_ms"}
    return [runs[0], runs[1].model_copy(update={"metrics": fewer}), *runs[2:]]


REFUSED: dict[str, tuple[Callable[[], list[RunSummary]], str]] = {
    "R1 plan": (lambda: _of_candidate(plan_digest="q" * 32), "pppp..pp and qqqq..qq"),
    "R1 cold against warm": (lambda: _of_candidate(initial_cache_blocks=12), "held 0 blocks at the start of baseline"),
    "R2": (lambda: [run for run in arms(WIN) if run.arm == "candidate"], "the baseline baseline has no completed run"),
    "R21": (lambda: _one_field_less(arms(WIN)), "only one arm has the figures e2e_mean_ms"),
    "R28": (lambda: _of_candidate(target={"modelled": {"noise": True, "kv_blocks": 9}}), "the targets differ"),
    "R30": (lambda: [run.model_copy(update={"decisions_digest": "same"}) for run in arms(WIN)], "took no effect"),
    "R39 lengths": (lambda: _of_candidate(lengths_digest="m"), "received output lengths differ"),
    "R39 quality": (lambda: _degraded({"baseline": 0.9, "candidate": 0.5}), "(0.9 and 0.5)"),
    "R40 machine": (lambda: _of_candidate(fingerprint={"threads": 4}), "threads None and 4"),
    "R40 level": (lambda: _of_candidate(level="cpu_kernels"), "(simulation and cpu_kernels)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_runs_that_cannot_be_compared_name_the_rule(case: str) -> None:
    runs, numbers = REFUSED[case]
    found = compare(runs())
    assert found.decision is None
    assert {obstacle.partition(":")[0] for obstacle in found.obstacles} == {case.split()[0]}
    assert numbers in found.obstacles[0]
    assert found.headline == f"not comparable: {found.obstacles[0]}"
    assert not (found.effects or found.why or found.diagnosis or found.gates)  # R7


# --- goals, decisions, findings, studies ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["input_transfer_mean_ms", "handoff_ms", "stream_output_mean_ms", "pool_utilisation",
                                  "device_busy_mean_share"])  # fmt: skip
def test_r3_and_r16_neither_input_and_output_nor_utilisation_can_be_a_gate(name: str) -> None:
    assert name in METRICS and name not in get_args(MetricName)
    for goal in ({"primary": name}, {"guard": {name: "+5%"}}):
        with pytest.raises(InputError, match=r"primary|guard"):
            parse(GoalSpec, goal)


@pytest.mark.parametrize("target", [{"modelled": {}}, {"torch": {"model": "tiny"}}])
def test_r30_holds_on_the_model_and_on_kernels(target: dict[str, Any]) -> None:
    same = [run.model_copy(update={"decisions_digest": "same"}) for run in arms(WIN)]
    assert compare(same, target=target).obstacles[0].startswith("R30: batch.token_budget 2048 -> 512")
    assert compare(arms(WIN), target=target).comparable


def test_r6_a_longer_queue_is_told_apart_from_compute() -> None:
    longer = {"queue_wait_mean_ms": 300.0, "e2e_mean_ms": 1250.0}
    found = compare(arms((1.3, 1.31, 1.3, 1.29, 1.3), changed=longer))
    assert found.why[0].startswith("queue wait rose from 50 ms to 300 ms per request at equal compute")


def test_r12_to_r14_are_rules_of_the_diagnosis_and_r24_has_five_classes() -> None:
    """`tests.verdict.test_diagnosis` has the trigger of each, which fires no other."""
    assert {"R12", "R13", "R14"} <= {rule.id for rule in DIAGNOSES} & TRIGGERS.keys()
    classes = get_args(Finding.model_fields["problem"].annotation)
    assert classes == ("compute", "queueing", "handoff", "allocation", "unknown")


def test_r15_two_layers_are_never_credited() -> None:
    both = {"policy": "vllm_v1", "batch": {"token_budget": 512}, "cache": {"prefix": "none"}}
    effect = next(e for e in compare(_of_candidate(policy=both)).effects if e.metric == "ttft_p95_ms")
    assert not effect.credited and "not to one layer" in effect.sentence
    alone = next(e for e in compare(arms(WIN)).effects if e.metric == "ttft_p95_ms")
    assert alone.credited and alone.layer == "layer 3, batch and queue"


def test_r17_a_stage_without_the_one_before_is_refused() -> None:
    asked = parse(GuidedSpec, {"name": "g", "workload": experiment().workload.canonical()})
    with pytest.raises(InputError, match="starts from what the stage before accepted"):
        stage_experiment(asked, 1, None)


def test_r18_the_final_table_always_has_the_seven() -> None:
    seven = {"ttft_p95_ms", "tpot_p95_ms", "throughput_tokens_per_s", "e2e_p99_ms", "concurrency_capacity",
             "fairness_jain", "pool_utilisation"}  # fmt: skip
    found = compare(arms(WIN))
    assert seven <= set(EFFECT_METRICS) == {effect.metric for effect in found.effects}
    assert any("fairness_jain: no figure (" in effect.sentence for effect in found.effects)


def test_r20_there_are_three_answers() -> None:
    assert [decision.value for decision in Decision] == ["accept", "tune", "reject"]


def test_r22_a_figure_is_never_defined_twice() -> None:
    one = METRICS["ttft_p50_ms"]
    with pytest.raises(ValueError, match="R22: the figure ttft_p50_ms is defined twice"):
        registry(one, replace(one, formula="something else"))


def test_r23_a_cluster_says_that_no_single_instance_was_played() -> None:
    pool = PoolSummary(
        instances=2, steps=9, tokens=9, utilisation=0.5, least_busy=0.4, most_busy=0.6, kv_peak_share=0.1
    )
    clusters = [run.model_copy(update={"pools": {"workers": pool}}) for run in arms(WIN)]
    assert any(line.startswith("R23: ") for line in compare(clusters).conditions)
    assert not any(line.startswith("R23: ") for line in compare(arms(WIN)).conditions)


def test_r27_one_arm_over_loads_has_no_decision() -> None:
    spec = experiment(sweep={"loads": [2, 4, 6]}, arms={"baseline": {"policy": "vllm_v1"}})
    verdict = decide_sweep(spec, {load: [summary("baseline", repeat) for repeat in range(2)] for load in (2, 4, 6)})
    assert verdict.sweeps[0].decision is None


def test_r34_to_r38_decide() -> None:
    """Four pairs and absent evidence are tune; conditions are never empty; latency ranks above throughput."""
    assert compare(arms(WIN[:4])).decision == "tune"
    blind = [run.model_copy(update={"metrics": {k: v for k, v in run.metrics.items() if k != "goodput_rps"}})
             for run in arms(WIN)]  # fmt: skip
    assert "evidence is missing for goodput_rps" in compare(blind).headline
    found = compare(arms(WIN))
    assert found.conditions[0].startswith("varied: batch.token_budget 2048 -> 512")
    assert "it says nothing about other models, hardware or topologies" in found.conditions[1]
    assert compare(arms(WIN, changed={"tpot_p95_censored_ms": 12.0})).decision == "reject"
    assert compare(arms(WIN, changed={"goodput_rps": 4.5})).decision == "tune"


def test_honest_records_satisfy_the_linter(tmp_path: Path) -> None:
    run = summarise(honest(), tmp_path)
    assert lint(run) == [] and run.audit.passed
    assert all(run.audit.checks[rule] for rule, _ in LAWS)
    assert any(isinstance(record, Step) for record in honest())
