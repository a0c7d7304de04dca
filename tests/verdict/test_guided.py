"""The guided plan reuses what was accepted; cost and Pareto front by hand-worked figures."""

import pytest

from scheduler_core.spec.parse import parse
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.types.errors import InputError
from scheduler_core.verdict.cost import cost, pareto
from scheduler_core.verdict.decide import decide
from scheduler_core.verdict.guided import STAGES, outcome, stage_experiment, stage_report
from tests.verdict.arms import arms, experiment, figure, summary


def test_first_stage_starts_from_the_reference() -> None:
    spec = stage_experiment(experiment(), 0, None)
    assert spec.arms["baseline"].policy == "static"
    assert spec.arms["continuous"].policy == "vllm_v1"
    assert spec.workload == experiment().workload


def test_each_stage_starts_from_what_was_accepted() -> None:
    accepted = parse(PolicySpec, {"policy": "vllm_v1", "order": {"by": "priority"}, "batch": {"token_budget": 512}})
    cache, batch, last = (stage_experiment(experiment(), number, accepted) for number in (1, 2, 3))
    assert cache.arms["baseline"] == batch.arms["baseline"] == last.arms["outcome"] == accepted
    assert all(arm.batch == accepted.batch for arm in cache.arms.values())
    assert "budget 512" not in batch.arms  # equal to the baseline
    assert list(last.arms) == ["baseline", "outcome"] and last.arms["baseline"].policy == "static"


def test_outcome_is_the_accepted_arm_or_the_baseline() -> None:
    spec = experiment()
    won = decide(spec, arms((0.70, 0.71, 0.69, 0.70, 0.70)))
    assert outcome(spec, won) == spec.arms["candidate"]
    lost = decide(spec, arms((1.3, 1.31, 1.29, 1.3, 1.3)))
    assert outcome(spec, lost) == spec.arms["baseline"]
    assert stage_report(2, spec, won)[-1] == "goes on with candidate"


def test_later_stages_need_an_accepted_configuration() -> None:
    with pytest.raises(InputError, match="cache starts from what the stage before accepted"):
        stage_experiment(experiment(), 1, None)
    with pytest.raises(InputError, match=f"0 to {len(STAGES) - 1}, not 9"):
        stage_experiment(experiment(), 9, None)


def test_cost_of_valid_tokens() -> None:
    """3.60 an hour is 0.001 a second; 500 valid of 625 tokens a second: 2.00 per million, a fifth wasted."""
    run = summary("candidate")
    for name, value in (("window_s", 60), ("throughput_finished_tokens_per_s", 500), ("throughput_tokens_per_s", 625)):
        run.metrics[name] = figure(name, value)
    found = cost(run, price_per_device_hour=3.6)
    assert [found.per_million_tokens, found.wasted_share] == pytest.approx([2.0, 0.2])
    run.metrics["throughput_finished_tokens_per_s"] = figure("throughput_finished_tokens_per_s", 0)
    with pytest.raises(InputError, match="finished no tokens"):
        cost(run, price_per_device_hour=3.6)


def test_pareto_front() -> None:
    points = {
        "a": {"cost": 1, "rate": 5},
        "b": {"cost": 2, "rate": 9},
        "c": {"cost": 2, "rate": 5},
        "d": {"cost": 1, "rate": 5},
    }
    assert pareto(points, {"cost": "lower", "rate": "higher"}) == ["a", "b", "d"]
