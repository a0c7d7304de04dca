"""Isolation: one tier alone and beside the others, from the spec to the verdict."""

from pathlib import Path
from typing import Any

import pytest

from headway.play import play
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.isolation import Others
from scheduler_core.spec.parse import parse
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.errors import InputError
from scheduler_core.verdict.isolation import decide_isolation
from scheduler_core.verdict.report.junit import junit
from scheduler_core.verdict.report.page import experiment_page
from scheduler_core.verdict.report.pull_request import pull_request
from scheduler_core.verdict.schema import Decision, Verdict
from scheduler_core.verdict.text import render
from scheduler_core.workload.freeze import freeze
from scheduler_core.workload.others import with_others

EXPERIMENT: dict[str, Any] = {
    "name": "neighbours",
    "workload": {
        "arrivals": {"poisson": {"rate_rps": 10}},
        "lengths": {"prompt": {"fixed": 200}, "output": {"fixed": 8}},
        "requests": 120,
        "tiers": {"chat": {"share": 0.4}, "batch": {"share": 0.6, "priority": 10}},
    },
    "target": {"modelled": {"profile": "reference-cpu-demo-s", "noise": True}},
    "arms": {
        "baseline": {"policy": "vllm_v1", "batch": {"size": 4}},
        "priority": {"policy": "vllm_v1", "batch": {"size": 4}, "order": {"by": "priority"}},
    },
    "isolation": {"tier": "chat", "metric": "ttft_p95_ms"},
    "goal": {"primary": "ttft_p95_ms", "better_by": 0.05},
}


def request(index: int, at: int, tenant: str, after: tuple[int, ...] = ()) -> PlannedRequest:
    return PlannedRequest(
        index, at, 10, 2, 2, seed=index, tenant=tenant, after=after, session=index, prefix_blocks=(7,)
    )


PLAN = (
    request(0, 0, "a"),
    request(1, 40, "b"),
    request(2, 50, "a"),
    request(3, 5, "b", after=(1,)),
    request(4, 99, "b"),
)


def shown(requests: tuple[PlannedRequest, ...]) -> list[tuple[str, int, int, tuple[int, ...]]]:
    return [(each.tenant, each.seed if each.tenant == "a" else -1, each.arrival_ns, each.after) for each in requests]


def test_alone_and_as_given() -> None:
    alone = with_others(PLAN, Others(tenant="a", times=0))
    assert shown(alone) == [("a", 0, 0, ()), ("a", 2, 50, ())]
    assert [each.index for each in alone] == [0, 1]
    assert with_others(PLAN, Others(tenant="a", times=1)) == (
        request(0, 0, "a"), request(1, 40, "b"), *_renumbered(),
    )  # fmt: skip


def _renumbered() -> tuple[PlannedRequest, ...]:
    """The answer to b's first is followed 5 later, at 45: before a's second at 50."""
    from dataclasses import replace

    return (
        replace(request(3, 5, "b", after=(1,)), index=2),
        replace(request(2, 50, "a"), index=3),
        request(4, 99, "b"),
    )


def test_twice_the_others() -> None:
    """The span is 100, so the repetition of b at 40 comes at 90 and that of 99 wraps to 49; a stays where it was."""
    twice = with_others(PLAN, Others(tenant="a", times=2))
    assert shown(twice) == [
        ("a", 0, 0, ()), ("b", -1, 40, ()), ("b", -1, 5, (1,)), ("b", -1, 49, ()), ("a", 2, 50, ()),
        ("b", -1, 90, ()), ("b", -1, 5, (5,)), ("b", -1, 99, ()),
    ]  # fmt: skip
    assert len({each.seed for each in twice}) == len(twice), "no request twice"
    assert len({each.session for each in twice}) == len(twice)


@pytest.mark.parametrize(
    ("others", "says"),
    [
        (Others(tenant="c"), "no request is of c; there are a, b"),
        (Others(tier="default", times=2), None),
    ],
)
def test_whose(others: Others, says: str | None) -> None:
    if says is None:
        assert with_others(PLAN, others) == with_others(PLAN, Others(tier="default", times=1))
    else:
        with pytest.raises(InputError, match=says):
            with_others(PLAN, others)


def test_users_that_change_their_tenant_are_refused() -> None:
    mixed = (request(0, 0, "a"), request(1, 5, "b", after=(0,)))
    with pytest.raises(InputError, match="request 1 and one that it follows are of different tenants"):
        with_others(mixed, Others(tenant="a"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"isolation": {"tier": "chat", "tenant": "a"}}, "name either a tenant or a tier"),
        ({"isolation": {"tier": "chats"}}, "there is no 'chats'; there are"),
        ({"isolation": {"tier": "chat", "others": [1, 1]}}, "the second number must be larger"),
        ({"sweep": {"loads": [1, 2, 3]}}, "cannot be combined with sweep"),
    ],
)
def test_mistakes_are_named(change: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse(ExperimentSpec, EXPERIMENT | change)


def test_the_requests_of_the_tier_are_the_same_alone_and_beside_the_others() -> None:
    spec = parse(ExperimentSpec, EXPERIMENT)
    alone, beside = (freeze(spec.workload_at(load)).requests for load in spec.loads)
    own = [each for each in beside if each.tier == "chat"]
    assert len(alone) == len(own) < len(beside) == 120
    assert [(e.arrival_ns, e.seed, e.prompt_tokens) for e in alone] == [
        (e.arrival_ns, e.seed, e.prompt_tokens) for e in own
    ]


@pytest.fixture(scope="module")
def verdict() -> Verdict:
    found = play(parse(ExperimentSpec, EXPERIMENT), base=Path.cwd(), on_step=lambda step: None).verdict
    assert found is not None
    return found


def test_priority_shields_the_tier(verdict: Verdict) -> None:
    """Overload by batch: chat waits behind it in order of arrival, and hardly at all before it."""
    (found,) = verdict.isolations
    base, other = found.arms
    assert base.shift is not None
    assert other.shift is not None
    assert base.shift > 2 * other.shift
    assert other.interval is not None
    assert other.interval.low < other.shift < other.interval.high
    assert [(gate.metric, gate.role) for gate in found.gates] == [
        ("isolation_ratio", "primary"), ("ttft_p95_ms", "guard"), ("goodput_rps", "guard"),
    ]  # fmt: skip
    assert (found.decision, verdict.exit_code) == (Decision.ACCEPT, 0)
    assert found.of == "tier chat"


def test_every_way_out_tells_it(verdict: Verdict) -> None:
    (found,) = verdict.isolations
    for text in (render(verdict), pull_request(verdict), experiment_page(verdict, []), junit(verdict)):
        assert "isolation_ratio" in text
        assert "accept" in text
    assert found.arms[1].sentence in render(verdict)


def test_one_arm_shows_isolation_and_too_few_repeats_decide_nothing() -> None:
    form = {**EXPERIMENT, "repeats": 2}
    played = play(parse(ExperimentSpec, form), base=Path.cwd(), on_step=lambda step: None)
    assert played.verdict is not None
    assert played.verdict.isolations[0].decision is Decision.TUNE
    single = parse(ExperimentSpec, {**form, "arms": {"baseline": EXPERIMENT["arms"]["baseline"]}})
    found = decide_isolation(single, _points(played.points)).isolations[0]
    assert (found.decision, found.candidate) == (None, None)
    assert "one arm shows isolation, not a gain" in found.headline
    assert "isolation of baseline" in junit(decide_isolation(single, _points(played.points)))


def _points(points: dict[float | None, list[RunSummary]]) -> dict[float, list[RunSummary]]:
    return {load or 0.0: runs for load, runs in points.items()}
