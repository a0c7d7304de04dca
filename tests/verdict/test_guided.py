"""The guided plan reuses what was accepted; the Pareto front by hand-worked figures."""

import pytest

from scheduler_core.policies.resolving import check_playable, resolve
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.parse import parse
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.profiles import choose_profile
from scheduler_core.spec.studies import GuidedSpec
from scheduler_core.types.errors import InputError
from scheduler_core.verdict.decide import decide
from scheduler_core.verdict.guided import (
    LAST,
    STAGES,
    StageResult,
    guided_report,
    next_stage,
    outcome,
    stage_experiment,
)
from scheduler_core.verdict.pareto import pareto
from scheduler_core.verdict.single_instance import SINGLE
from tests.verdict.arms import arms, experiment

ASKED = parse(GuidedSpec, {"name": "tuning", "workload": experiment().workload.canonical(), "target": {"modelled": {}}})
ACCEPTED = parse(PolicySpec, {"policy": "vllm_v1", "order": {"by": "priority"}, "batch": {"token_budget": 512}})


def allows(policy: PolicySpec) -> bool:
    try:
        resolve(policy)
    except InputError:
        return False
    return True


def test_the_first_stage_starts_from_the_reference() -> None:
    number, spec = next_stage(ASKED, -1, None, allows=allows)
    assert (number, spec.name) == (0, "tuning 1 step selection")
    assert spec.arms["baseline"] == ASKED.start and ASKED.start.policy == "static"
    assert spec.arms["continuous"].policy == "vllm_v1"
    assert spec.workload == ASKED.workload


def test_each_stage_starts_from_what_was_accepted() -> None:
    cache, batch, last = (stage_experiment(ASKED, number, ACCEPTED, allows=allows) for number in (1, 2, LAST))
    assert cache.arms["baseline"] == batch.arms["baseline"] == last.arms["outcome"] == ACCEPTED
    assert all(arm.batch == ACCEPTED.batch for arm in cache.arms.values())
    assert "budget 512" not in batch.arms  # equal to the baseline
    assert list(last.arms) == ["baseline", "outcome"] and last.arms["baseline"].policy == "static"


def test_variants_that_cannot_be_played_are_left_out_and_empty_stages_passed_over() -> None:
    """Where nothing but the reference can be played there is nothing to try in any stage."""
    picky = stage_experiment(ASKED, 2, ACCEPTED, allows=lambda policy: policy.batch.token_budget != 256)
    assert list(picky.arms) == ["baseline", "budget 2048"]
    number, _ = next_stage(ASKED, 2, ACCEPTED, allows=lambda policy: False)
    assert number == LAST
    with pytest.raises(InputError, match="nothing is left to try"):
        next_stage(ASKED, -1, None, allows=lambda policy: False)
    with pytest.raises(InputError, match="nothing is left to try"):
        next_stage(ASKED, LAST - 1, ASKED.start, allows=allows)


@pytest.mark.parametrize("stage", range(LAST), ids=lambda number: STAGES[number].name)
def test_every_variant_is_a_policy_that_can_be_played(stage: int) -> None:
    """A variant that can never be played would be passed over in silence."""
    cluster = {"modelled": {"topology": {"groups": {"front": {"count": 1}, "back": {"count": 1}}}}}
    asked = parse(GuidedSpec, {**ASKED.canonical(), "target": cluster})
    replicas = {"policy": "vllm_v1", "pools": {"layout": "replicas"}, "batch": {"token_budget": 777}}
    static = {"policy": "static", "pools": {"layout": "replicas"}}
    spec = stage_experiment(asked, stage, parse(PolicySpec, replicas if stage else static))
    assert set(spec.arms) == {"baseline", *STAGES[stage].variants, SINGLE}
    assert spec.arms[SINGLE].pools.hold == {"back": 1, "front": 0}
    for policy in spec.arms.values():
        check_playable(policy, asked.target, choose_profile("auto", [], where="profile"))


def test_routing_is_asked_only_where_there_are_several_instances() -> None:
    routing = next(number for number, stage in enumerate(STAGES) if stage.name == "routing")
    assert list(stage_experiment(ASKED, routing, ACCEPTED).arms) == ["baseline"]


def test_outcome_is_the_accepted_arm_or_the_baseline() -> None:
    spec = experiment()
    won = decide(spec, arms((0.70, 0.71, 0.69, 0.70, 0.70)))
    assert outcome(spec, won) == spec.arms["candidate"]
    lost = decide(spec, arms((1.3, 1.31, 1.29, 1.3, 1.3)))
    assert outcome(spec, lost) == spec.arms["baseline"]


def test_the_report_tells_each_stage_and_what_was_left_out() -> None:
    spec: ExperimentSpec = experiment()
    won = decide(spec, arms((0.70, 0.71, 0.69, 0.70, 0.70)))
    lines = guided_report([StageResult(0, spec, won), StageResult(2, spec, won)])
    assert lines[0].startswith("1. step selection")
    assert "goes on with candidate" in lines
    assert lines[3] == "2. cache: left out, nothing in it can be tried here"


def test_later_stages_need_an_accepted_configuration() -> None:
    with pytest.raises(InputError, match="cache starts from what the stage before accepted"):
        stage_experiment(ASKED, 1, None)
    with pytest.raises(InputError, match=f"0 to {LAST}, not 9"):
        stage_experiment(ASKED, 9, None)


def test_pareto_front() -> None:
    points = {
        "a": {"cost": 1, "rate": 5},
        "b": {"cost": 2, "rate": 9},
        "c": {"cost": 2, "rate": 5},
        "d": {"cost": 1, "rate": 5},
    }
    assert pareto(points, {"cost": "lower", "rate": "higher"}) == ["a", "b", "d"]
