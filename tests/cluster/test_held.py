"""What a policy holds of a cluster: instances, layout, price, and a search over them."""

from pathlib import Path
from typing import Any

import pytest

from headway.studies import play_search
from scheduler_core.policies.resolving import check_layout, resolve
from scheduler_core.spec.parse import parse
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.studies import SearchSpec
from scheduler_core.spec.target import TargetSpec
from scheduler_core.spec.topology import Topology
from scheduler_core.spec.variants import turned
from scheduler_core.types.errors import InputError

GROUPS = {"big": {"count": 2, "price_per_device_hour": 4.0}, "small": {"count": 3, "price_per_device_hour": 1.0}}
TARGET = parse(TargetSpec, {"modelled": {"profile": "reference-cpu-demo-s", "topology": {"groups": GROUPS}}})
REPLICAS = parse(PolicySpec, {"policy": "vllm_v1", "pools": {"layout": "replicas"}})


def held(topology: Topology, hold: dict[str, int] | None) -> dict[str, int]:
    return {name: group.count for name, group in topology.holding(hold).groups.items()}


def test_what_is_held() -> None:
    assert TARGET.topology is not None
    assert held(TARGET.topology, None) == {"big": 2, "small": 3}
    assert held(TARGET.topology, {"big": 1}) == {"big": 1, "small": 3}
    assert held(TARGET.topology, {"big": 0, "small": 2}) == {"small": 2}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"pools.hold.big": 3}, "pools.hold.big: is 3, but the target has 2"),
        ({"pools.hold.huge": 1}, "pools.hold.huge: is 1, but the target has 0"),
        ({"pools.hold.big": 0, "pools.hold.small": 0}, "holds no instance at all"),
        ({"pools.layout": "split", "pools.prefill": "big", "pools.hold.small": 0}, "leave at least one to decode"),
        ({"pools.layout": "split", "pools.prefill": "big", "pools.hold.big": 0}, "there is no group 'big'"),
    ],
)
def test_what_cannot_be_held_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        check_layout(resolve(turned(REPLICAS, change)), TARGET)


def test_groups_are_named_in_one_word() -> None:
    assert turned(REPLICAS, {"pools.prefill": "big+small"}).pools.prefill == ("big", "small")


def test_a_search_over_what_is_held_pays_for_what_is_held(tmp_path: Path) -> None:
    """Light load (the window lasts 58 s, a request well under one) and equal speed: one small instance at 1 an hour
    gives the same tokens in about the same window as one of each at 5 and as two big at 8, so costs are as 1 : 5 : 8.
    """
    spec = parse(
        SearchSpec,
        {
            "name": "which",
            "workload": {
                "arrivals": {"constant": {"rate_rps": 0.5}},
                "lengths": {"prompt": {"fixed": 32}, "output": {"fixed": 4}},
                "requests": 30,
            },
            "target": TARGET.canonical(),
            "base": {**REPLICAS.canonical(), "pools": {"layout": "replicas", "hold": {"big": 2, "small": 0}}},
            "space": {"pools.hold.big": {"values": [0, 1]}, "pools.hold.small": {"values": [0, 1]}},
            "method": "grid",
            "tail": "e2e_p95_ms",
        },
    )
    found = play_search(spec, base=tmp_path, on_policy=lambda done, total: None, on_step=lambda step: None).search
    assert found is not None
    cost = {
        tuple(trial.choice.values()): trial.figures["cost_per_million_tokens"]
        for trial in found.trials
        if trial.figures
    }
    assert cost["0", "1"] == min(cost.values())
    assert cost["1", "1"] / cost["0", "1"] == pytest.approx(5, rel=0.02)
    assert cost[()] / cost["0", "1"] == pytest.approx(8, rel=0.02)
    (refused,) = [trial for trial in found.trials if trial.failure]
    assert refused.choice == {"pools.hold.big": "0", "pools.hold.small": "0"}
    assert "holds no instance at all" in refused.failure
    assert next(trial.number for trial in found.trials if trial.choice.get("pools.hold.small") == "1"
                and trial.choice["pools.hold.big"] == "0") in found.front  # fmt: skip
