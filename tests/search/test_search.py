"""Searches on the modelled target: what is tried, what no other policy beats, and what is to be confirmed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_runner.search.play import Search
from gpu_runner.search.samplers import SAMPLERS
from scheduler_core.spec.parse import parse
from scheduler_core.spec.profiles import choose_profile
from scheduler_core.spec.studies import Dimension, SearchSpec
from scheduler_core.types.errors import InputError
from scheduler_core.verdict.search import SearchResult, Trial, conclude, confirmation, objectives
from scheduler_core.workload.freeze import freeze

SEARCH: dict[str, Any] = {
    "name": "budgets",
    "workload": {
        "arrivals": {"poisson": {"rate_rps": 12}},
        "lengths": {"prompt": {"fixed": 120}, "output": {"fixed": 8}},
        "requests": 60,
    },
    "target": {"modelled": {"price_per_device_hour": 3.6}},
    "space": {"batch.token_budget": {"values": [32, 256]}, "batch.size": {"values": [2, 16]}},
    "method": "grid",
}


def spec(**changed: Any) -> SearchSpec:
    return parse(SearchSpec, {**SEARCH, **changed})


def search(asked: SearchSpec) -> SearchResult:
    found = Search(asked, freeze(asked.workload), choose_profile("auto", [], where="profile"))
    return found.result(lambda done, total: None, lambda: False)


def test_a_grid_plays_every_combination_once_and_the_base_first() -> None:
    found = search(spec())
    assert [trial.choice for trial in found.trials] == [
        {},
        {"batch.token_budget": "32", "batch.size": "2"},
        {"batch.token_budget": "32", "batch.size": "16"},
        {"batch.token_budget": "256", "batch.size": "2"},
        {"batch.token_budget": "256", "batch.size": "16"},
    ]
    assert all(trial.figures.keys() >= objectives(spec()).keys() for trial in found.trials)
    by_choice = {tuple(trial.choice.values()): trial.figures["ttft_p95_ms"] for trial in found.trials[1:]}
    assert by_choice["256", "16"] < by_choice["32", "2"]  # slots and budget both starve the first tokens
    assert set(found.best) <= set(found.front) and 0 not in found.best


@pytest.mark.parametrize("method", SAMPLERS)
def test_the_same_seed_finds_the_same(method: str) -> None:
    asked = spec(method=method, trials=6, seed=3, space={"batch.token_budget": {"low": 32, "high": 512}})
    one, other = search(asked), search(asked)
    assert one == other
    assert len(one.trials) > 2
    budgets = [int(trial.choice["batch.token_budget"]) for trial in one.trials[1:]]
    assert all(32 <= budget <= 512 for budget in budgets)


def test_a_learning_search_finds_what_a_full_grid_finds() -> None:
    """Of 12 values of the batch size the shortest tail: 16 trials of the estimator find one as good as the best."""
    space = {"batch.size": {"values": [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32]}}
    whole = search(spec(space=space, seed=1))
    found = search(spec(space=space, method="tpe", trials=16, seed=1))
    best = min(trial.figures["ttft_p95_ms"] for trial in whole.trials[1:])
    assert min(trial.figures["ttft_p95_ms"] for trial in found.trials[1:]) == pytest.approx(best)


def test_what_cannot_be_played_is_a_trial_with_its_reason() -> None:
    """A pool of one block cannot hold a prompt of 120 tokens."""
    found = search(spec(space={"cache.blocks": {"values": [1, 512]}}))
    assert "cache.blocks" in found.trials[1].failure or "few requests" in found.trials[1].failure
    assert not found.trials[2].failure
    assert 1 not in found.front


def test_a_refused_policy_is_not_proposed_again() -> None:
    """Of 2 x 4 choices the four with a pool of one block cannot be played; each of them is tried at most once.

    The other four are always left to propose, so that the estimator uses up its 30 trials.
    """
    space = {"cache.blocks": {"values": [1, 512]}, "batch.size": {"values": [2, 4, 8, 16]}}
    sampler = SAMPLERS["tpe"](spec(space=space, method="tpe", trials=30, seed=1))
    given = []
    for choice in sampler.choices():
        given.append(choice)
        playable = choice["cache.blocks"] == "512"
        sampler.tell(dict.fromkeys(objectives(spec()), float(choice["batch.size"])) if playable else None)
    refused = [tuple(choice.values()) for choice in given if choice["cache.blocks"] == "1"]
    assert refused and len(refused) == len(set(refused))
    assert len(given) == 30


def test_a_space_in_which_everything_is_refused_comes_to_an_end() -> None:
    found = search(spec(space={"cache.blocks": {"values": [1, 2]}}, method="tpe", trials=30))
    assert sorted(trial.choice["cache.blocks"] for trial in found.trials[1:]) == ["1", "2"]


def test_the_front_and_the_best_all_round() -> None:
    """By hand: 1 has the least cost, 2 the shortest tail, 3 is near both, 4 is beaten by 3.

    Distances to (cost 1, rate 100, tail 10): 1: ln 9; 2: ln 4 + ln 2; 3: ln 1.1 + ln 1.2.
    """
    rows = {1: (1.0, 100.0, 90.0), 2: (4.0, 50.0, 10.0), 3: (1.1, 100.0, 12.0), 4: (1.2, 90.0, 13.0), 0: (5, 40, 99)}
    trials = [
        Trial(
            number=number, choice={"batch.size": str(number)}, figures=dict(zip(objectives(spec()), row, strict=True))
        )
        for number, row in rows.items()
    ]
    asked = spec(confirm={"best": 2, "target": {"torch": {}}})
    found = conclude(asked, trials)
    assert sorted(found.front) == [1, 2, 3]
    assert found.best == [3, 2]
    experiment = confirmation(asked, found)
    assert experiment is not None
    assert list(experiment.arms) == ["baseline", "trial 3", "trial 2"]
    assert (experiment.arms["trial 3"].batch.size, experiment.target.kind) == (3, "torch")
    assert confirmation(spec(), found) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"space": {}}, "space"),
        ({"space": {"batch.sise": {"values": [1]}}}, "batch.sise"),
        ({"space": {"speed": {"values": [1]}}}, "is no setting of a policy"),
        ({"space": {"batch.size": {"values": ["many"]}}}, "many cannot be set"),
        ({"space": {"batch.size": {"values": [1], "low": 1, "high": 2}}}, "either values or a range"),
        ({"space": {"batch.size": {"low": 4, "high": 2}}}, "low below high"),
        ({"space": {"batch.size": {"low": 0, "high": 2}}}, "begins above 0"),
        ({"target": {"torch": {}}}, "needs the modelled target"),
        ({"method": "luck"}, "method"),
    ],
)
def test_mistakes_are_refused_with_their_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        spec(**change)


def test_values_are_written_as_in_a_policy() -> None:
    """A range from 64 to 1024 by ratios in five points: each doubles."""
    assert parse(Dimension, {"low": 64, "high": 1024}).grid() == ["64", "128", "256", "512", "1024"]
    assert parse(Dimension, {"low": 0, "high": 0.2, "scale": "linear", "whole": False, "points": 3}).grid() == [
        "0", "0.1", "0.2",
    ]  # fmt: skip
    assert parse(Dimension, {"values": "8, 16, true"}).grid() == ["8", "16", "true"]
    assert parse(Dimension, {"values": [8, 0.5, True]}).grid() == ["8", "0.5", "true"]


def test_the_process_hands_in_its_result(tmp_path: Path) -> None:
    asked = spec(trials=3)
    plan = tmp_path / "plan.jsonl.gz"
    freeze(asked.workload).write(plan)
    profile = choose_profile("auto", [], where="profile")
    job = {"run": "r", "spec": asked.canonical(), "profile": profile.canonical(), "plan_file": str(plan),
           "workdir": str(tmp_path / "work")}  # fmt: skip
    (tmp_path / "job.json").write_text(json.dumps(job))
    command = [sys.executable, "-m", "gpu_runner.search", str(tmp_path / "job.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stderr
    assert messages[-1]["outcome"] == "succeeded" and "policies played" in messages[-1]["reason"]
    assert [message["name"] for message in messages if message["type"] == "artifact"] == ["search.json"]
    found = parse(SearchResult, json.loads((tmp_path / "work" / "search.json").read_text()))
    assert len(found.trials) == 4
    command[-1] = str(tmp_path / "nothing.json")
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 1
