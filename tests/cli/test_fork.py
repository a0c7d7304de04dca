"""``headway fork``: a modelled arm changed at a moment, from the command line."""

import json
from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Headway


def test_a_rule_changed_at_a_moment_is_compared_from_there(headway: Headway, written: Callable[..., Path]) -> None:
    file = written(target={"modelled": {"noise": False}}, repeats=5)
    ran = headway("fork", file, "--at", "1", "--set", "batch.size=2", "--json")
    found = json.loads(ran.out)
    assert found["experiment"]["fork"] == {"at_s": 1}
    assert found["experiment"]["arms"]["changed"]["batch"]["size"] == 2
    assert {run["fingerprint"]["forked_at_s"] for run in found["runs"]} == {1}
    assert all(run["measured"] < run["offered"] for run in found["runs"])
    assert found["verdict"]["comparisons"][0]["obstacles"] == []


def test_wrong_rules_are_told(headway: Headway, written: Callable[..., Path]) -> None:
    file = written(target={"modelled": {}})
    for options, says in (
        (("--set", "size=2"), "is not like batch.size=16"),
        (("--set", "batch.sise=2"), "did you mean"),
        (("--set", "cache.block_size=8"), "cannot change from 16 to 8"),
        (("--arm", "nobody", "--set", "batch.size=2"), "there is no arm 'nobody'"),
    ):
        ran = headway("fork", file, "--at", "1", *options)
        assert ran.status == 1
        assert says in ran.err
