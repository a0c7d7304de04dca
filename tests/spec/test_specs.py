"""Specs: canonical, digestible, and every mistake answered with its field and what would be right."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from scheduler_core.spec.base import Spec
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.goal import GoalSpec
from scheduler_core.spec.job import RunJob
from scheduler_core.spec.parse import parse
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.target import Profile, TargetSpec
from scheduler_core.spec.workload import Line, Tier, Trace, WorkloadSpec
from scheduler_core.types.errors import InputError
from tests.workload.examples import SPECS

POLICY = {"policy": "vllm_v1", "batch": {"token_budget": 2048}, "cache": {"blocks": 64}}
EXPERIMENT = {
    "name": "chunked prefill on chat traffic",
    "workload": SPECS["people"],
    "target": {"modelled": {"profile": "auto"}},
    "arms": {"baseline": {"policy": "static"}, "budget-512": POLICY},
    "goal": {"primary": "ttft_p95_ms", "better_by": "10%", "guard": {"tpot_p95_ms": "+5%", "goodput_rps": "-2%"}},
}
PROFILE = {
    "name": "here",
    "model": "demo-s",
    "device": "cpu",
    "dtype": "float32",
    "cost": {"base_ns": 1, "prefill_token_ns": 2, "decode_request_ns": 3, "context_token_ns": 4},
    "residual_share": 0.1,
    "drift_share": 0.01,
    "held_out_error_share": 0.05,
    "domain": {"prefill_tokens": 512},
    "steps_measured": 10,
    "measured_on": {"cores": 2},
}
JOB = {
    "run": "run_1",
    "plan_file": "plan",
    "policy": POLICY,
    "target": {"torch": {}},
    "tiers": {"default": {}},
    "workdir": "scratch",
}
EXAMPLES: list[tuple[type[Spec], dict[str, Any]]] = [
    *((WorkloadSpec, data) for data in SPECS.values()),
    (PolicySpec, POLICY),
    (TargetSpec, {"torch": {"model": "demo-s"}}),
    (TargetSpec, {"modelled": {}}),
    (GoalSpec, {}),
    (ExperimentSpec, EXPERIMENT),
    (Profile, PROFILE),
    (RunJob, JOB),
]


@pytest.mark.parametrize(("cls", "data"), EXAMPLES)
def test_canonical_form_is_read_back_as_the_same_spec(cls: type[Spec], data: dict[str, Any]) -> None:
    spec = parse(cls, data)
    text = json.dumps(spec.canonical(), allow_nan=False)
    again = parse(cls, json.loads(text))
    assert again == spec
    assert again.digest() == spec.digest()
    assert parse(cls, spec) is spec


@pytest.mark.parametrize(("cls", "data"), EXAMPLES)
def test_the_json_schema_accepts_what_the_model_accepts(cls: type[Spec], data: dict[str, Any]) -> None:
    """Both as a form sends it and in canonical form; a stray key is refused by both."""
    schema = cls.model_json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(parse(cls, data).canonical())
    assert not validator.is_valid({**parse(cls, data).canonical(), "stray": 1})


@pytest.mark.parametrize("cls", sorted({cls for cls, _ in EXAMPLES}, key=str))
def test_every_spec_says_what_it_is(cls: type[Spec]) -> None:
    assert cls.model_json_schema()["description"]


def test_digests_are_pinned() -> None:
    """Stored versions are found by these: a change of a default or a name must be meant; a new optional one is none."""
    assert parse(PolicySpec, POLICY).digest() == "7f5991ce6e8a830ddaa43e22cf307351"
    assert parse(WorkloadSpec, SPECS["poisson"]).digest() == "6549e22fedce20f1c1e404c27fd4fafa"


@pytest.mark.parametrize("hash_seed", ["1", "99"])
def test_digests_are_those_of_any_process(hash_seed: str) -> None:
    script = (
        "import json, sys; from scheduler_core.spec.parse import parse; "
        "from scheduler_core.spec.experiment import ExperimentSpec; "
        "print(parse(ExperimentSpec, json.load(sys.stdin)).digest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(EXPERIMENT),
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == parse(ExperimentSpec, EXPERIMENT).digest()


def test_writing_a_default_or_another_order_changes_no_digest() -> None:
    bare = parse(PolicySpec, {"policy": "static", "batch": {"size": 8}})
    assert parse(PolicySpec, {"batch": {"size": 8, "token_budget": None}, "policy": "static"}).digest() == bare.digest()
    assert parse(PolicySpec, {"policy": "static", "batch": {"size": 9}}).digest() != bare.digest()


def test_specs_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        parse(PolicySpec, POLICY).policy = "other"  # type: ignore[misc]


def test_shares_are_percentages_or_fractions() -> None:
    goal = parse(GoalSpec, EXPERIMENT["goal"])
    assert goal.better_by == 0.1
    assert goal.guard == {"tpot_p95_ms": 0.05, "goodput_rps": -0.02}


def test_tier_lines() -> None:
    assert parse(Tier, {"ttft_ms": "200 + 0.5 per uncached token"}).ttft_line() == Line(base=200, per_token=0.5)
    assert parse(Tier, {"ttft_ms": 80}).ttft_line() == Line(base=80)
    assert parse(Tier, {}).ttft_line() is None


def test_runs_are_interleaved_in_drawn_turns() -> None:
    """Each repeat has every arm once; which goes first changes about every other time, in no fixed pattern."""
    spec = parse(ExperimentSpec, EXPERIMENT | {"repeats": 100})
    turns = [tuple(place.arm for place in spec.runs([repeat])) for repeat in range(100)]
    assert [(place.repeat, place.arm) for place in spec.runs()] == [
        (repeat, arm) for repeat, arms in enumerate(turns) for arm in arms
    ]
    assert {frozenset(arms) for arms in turns} == {frozenset(spec.arms)}
    first = [arms[0] == "baseline" for arms in turns]
    assert 35 <= sum(first) <= 65
    assert 35 <= sum(one != other for one, other in itertools.pairwise(first)) <= 65
    assert spec.runs() == parse(ExperimentSpec, spec.canonical()).runs()


@pytest.mark.parametrize(("repeats", "first"), [(None, 5), (2, 5), (6, 10), (10, 10), (30, 30)])
def test_the_first_pairs_reach_a_declared_look(repeats: int | None, first: int) -> None:
    goal = {**EXPERIMENT["goal"], "looks": [5, 10, 20]}  # type: ignore[dict-item]
    spec = parse(ExperimentSpec, EXPERIMENT | {"goal": goal} | ({"repeats": repeats} if repeats else {}))
    assert spec.first_pairs() == first
    assert len(spec.runs()) == 2 * first
    assert spec.runs() + spec.runs(range(first, 40)) == spec.runs(range(40))


def test_the_baseline_is_written_out() -> None:
    """The order of keys is lost in a digest and in a database; which arm is compared with must not be."""
    arms = {"b": {"policy": "static"}, "a": POLICY}
    spec = parse(ExperimentSpec, EXPERIMENT | {"arms": arms})
    assert spec.baseline == "b"
    turned = parse(ExperimentSpec, EXPERIMENT | {"arms": dict(reversed(arms.items()))})
    assert turned.baseline == "a" and turned.digest() != spec.digest()
    canonical = spec.canonical()
    canonical["arms"] = dict(sorted(canonical["arms"].items()))
    assert parse(ExperimentSpec, canonical).baseline == "b"
    assert parse(ExperimentSpec, EXPERIMENT).baseline == "baseline"
    assert parse(ExperimentSpec, EXPERIMENT | {"baseline": "budget-512"}).baseline == "budget-512"


# --- mistakes -------------------------------------------------------------------------------------------------------

WORKLOAD = SPECS["poisson"]
TRACE = {"trace": {"file": "conv.csv"}}


def problems(cls: type[Spec], data: object) -> list[str]:
    with pytest.raises(InputError) as caught:
        parse(cls, data)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nme": 1}, "nme: unknown key; did you mean 'name'?"),
        (
            {"zzz": 1},
            "zzz: unknown key; known: name, workload, target, arms, baseline, repeats, goal, sweep, isolation, fork, "
            "events, run_limit_s",
        ),
        (
            {"arms": {"b": {"policy": "static", "batch": {"sise": 8}}}},
            "arms.b.batch.sise: unknown key; did you mean 's",
        ),
        (
            {"arms": {"batch": {"policy": "static", "cahce": {}}}},
            "arms.batch.cahce: unknown key; did you mean 'cache'?",
        ),
        ({"baseline": "nope"}, "baseline: there is no arm 'nope'; there are baseline, budget-512"),
        ({"arms": {}}, "arms: Dictionary should have at least 1 item"),
        ({"name": "x" * 100_000}, f"name: '{'x' * 80}...' is not a usable name"),
        ({"arms": {"?": POLICY}}, "arms.?: '?' is not a usable name; use up to 64 letters, digits"),
        ({"name": "n" * 65}, "name: 'nnnn"),
        ({"repeats": "many"}, "repeats: Input should be a valid integer"),
        ({"repeats": 0}, "repeats: Input should be greater than or equal to 1"),
        ({"goal": {"better_by": "ten"}}, "goal.better_by: 'ten' is not a share; write a percentage such as \"10%\""),
        ({"goal": {"guard": {"nope": 1}}}, "goal.guard.nope: Input should be 'ttft_p50_ms'"),
        ({"run_limit_s": float("nan")}, "run_limit_s: Input should be"),
        (
            {"target": {"torch": {}, "modelled": {}}},
            "target: give exactly one of torch, modelled, server; got torch, modelled",
        ),
        ({"target": {"torch": {"model": "demo-x"}}}, "target.torch.model: 'demo-x' is no built-in shape (demo-s, "),
        ({"target": {}}, "target: give exactly one of torch, modelled, server; got nothing"),
        ({"workload": None}, "workload: keys and values are expected here, got nothing"),
        ({"workload": [1]}, "workload: keys and values are expected here, got a list"),
        ({"repeats": True}, "repeats: is true, which is neither a number nor a text in quotes"),
        ({"name": False}, "name: is false, which is neither a number nor a text in quotes"),
        ({"name": 7}, "name: is 7, where a text is expected; put it in quotes"),
    ],
)
def test_mistakes_in_an_experiment(change: dict[str, Any], message: str) -> None:
    (found,) = problems(ExperimentSpec, EXPERIMENT | change)
    assert found.startswith(message)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "give exactly one of trace, profile, or arrivals with lengths; got nothing"),
        (WORKLOAD | TRACE, "give exactly one of trace, profile, or arrivals with lengths; got trace and arrivals"),
        (WORKLOAD | {"lengths": None}, "arrivals: arrivals needs lengths beside it"),
        (TRACE | {"lengths": WORKLOAD["lengths"]}, "lengths: lengths belongs to arrivals; a trace or profile brings"),
        (WORKLOAD | {"requests": None}, "requests: requests is missing: say how many to offer"),
        ({"profile": "burstgpt", "requests": 9}, "rate_rps: rate_rps is missing: a profile has a shape, not a rate"),
        (WORKLOAD | {"rate_rps": 3}, "rate_rps: rate_rps belongs to profile; here the rate is in arrivals"),
        (TRACE | {"rate_rps": 3}, "rate_rps: rate_rps belongs to profile; here the rate is in trace"),
        (WORKLOAD | {"lengths_scale": 2}, "lengths_scale: lengths_scale belongs to profile; here it is lengths.scale"),
        (TRACE | {"lengths_scale": 2}, "lengths_scale: lengths_scale belongs to profile; here it is trace.lengths_s"),
        (TRACE | {"sessions": {}}, "sessions: sessions cannot be added to a trace: its rows have their own times"),
        (WORKLOAD | {"prefix": {"tokens": 15}}, "prefix: prefix.tokens (15) is below block_size (16): only whole"),
        (WORKLOAD | {"tiers": {"a": {"share": 0.5}}}, "tiers: the shares add up to 0.5, they must add up to 1"),
        (WORKLOAD | {"tenants": {"a": {}, "b": {}}}, "tenants: the shares add up to 2, they must add up to 1"),
        (WORKLOAD | {"tiers": {"a": {"ttft_ms": "200"}}}, "tiers.a.ttft_ms: '200' is neither a number nor like"),
        (WORKLOAD | {"tiers": {"a": {"ttft_ms": 0}}}, "tiers.a.ttft_ms: 0 is not a limit; write ms above 0"),
        (WORKLOAD | {"tiers": {"a": {"ttft_ms": [1]}}}, "tiers.a.ttft_ms: Input should be a valid number, or: Input"),
        (WORKLOAD | {"output_limit": 0}, "output_limit: Input should be greater than 0, or: Input should be 'longest'"),
        (WORKLOAD | {"seed": -1}, "seed: Input should be greater than or equal to 0"),
        (WORKLOAD | {"seed": 2**63}, "seed: Input should be less than"),
        (
            WORKLOAD | {"arrivals": {}},
            "arrivals: give exactly one of constant, poisson, gamma, closed, ramp, step, qua",
        ),
        (
            WORKLOAD | {"arrivals": {"poisson": {"rate_rps": 0}}},
            "arrivals.poisson.rate_rps: Input should be greater th",
        ),
        (
            WORKLOAD | {"arrivals": {"gamma": {"rate_rps": 1, "burstiness": 0.001}}},
            "arrivals.gamma.burstiness: Input should be greater than or equal to 0.01",
        ),
        (
            WORKLOAD | {"arrivals": {"ramp": {"from_rps": 1, "to_rps": 0, "over_s": 9}}},
            "arrivals.ramp.to_rps: to_rps must be above 0, else the last requests never arrive",
        ),
        (
            WORKLOAD | {"arrivals": {"step": {"stages": [{"rate_rps": 0, "for_s": 1}]}}},
            "arrivals.step: the last stage needs a rate above 0",
        ),
        (
            WORKLOAD | {"arrivals": {"step": {"stages": [{"rate_rps": 1}]}}},
            "arrivals.step.stages.0.for_s: Field required",
        ),
        (
            WORKLOAD | {"arrivals": {"quantiles": {"gaps": {"values": [0, 0]}, "rate_rps": 1}}},
            "arrivals.quantiles.gaps: gaps are all 0, so they cannot be scaled to a rate",
        ),
        (
            WORKLOAD | {"arrivals": {"quantiles": {"gaps": {"values": [2, 1]}, "rate_rps": 1}}},
            "arrivals.quantiles.gaps.values: values must be 0 or more and never fall",
        ),
        (
            WORKLOAD | {"arrivals": {"closed": {"concurrency": 1, "think_s": 1e9}}},
            "arrivals.closed.think_s: Input should be less than or equal to 86400",
        ),
        (
            WORKLOAD | {"lengths": {"prompt": {"uniform": {"low": 9, "high": 3}}, "output": {"fixed": 1}}},
            "lengths.prompt.uniform.high: high (3) must not be below low (9)",
        ),
        (
            WORKLOAD | {"lengths": {"prompt": {"fixed": 1, "uniform": {"low": 1, "high": 2}}, "output": {"fixed": 1}}},
            "lengths.prompt: give exactly one of fixed, uniform, lognormal, quantiles; got fixed, uniform",
        ),
    ],
)
def test_mistakes_in_a_workload(data: dict[str, Any], message: str) -> None:
    (found,) = problems(WorkloadSpec, data)
    assert found.startswith(message)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "give either file (a path) or dataset (the id of an imported trace)"),
        ({"file": "a", "dataset": "b"}, "give either file (a path) or dataset"),
        ({"file": "a", "rows": "9-3"}, "rows: '9-3' is not a range of rows; write the first and last row, such as"),
        ({"file": "a", "rows": "0-3"}, "rows: '0-3' is not a range of rows"),
        ({"file": "a", "format": "azure"}, "format: Input should be 'azure-2023', 'azure-2024', 'azure-2025', "),
        ({"file": "a", "time_unit": "min"}, "time_unit: Input should be 's', 'ms', 'us' or 'ns'"),
        ({"file": "a", "columns": {"arival": "t"}}, "columns.arival: unknown key; did you mean 'arrival'?"),
    ],
)
def test_mistakes_in_a_trace(data: dict[str, Any], message: str) -> None:
    (found,) = problems(Trace, data)
    assert found.startswith(message)


def test_all_mistakes_are_said_at_once() -> None:
    data = EXPERIMENT | {"repeats": 0, "nme": 1, "arms": {"a": {"polcy": "static"}}}
    assert problems(ExperimentSpec, data) == [
        "arms.a.policy: Field required",
        "arms.a.polcy: unknown key; did you mean 'policy'?",
        "repeats: Input should be greater than or equal to 1",
        "nme: unknown key; did you mean 'name'?",
    ]
