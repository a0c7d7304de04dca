"""A verdict on the cache says what the replay hit and what was hit where the traffic was logged."""

from typing import Any

import pytest

from scheduler_core.verdict.decide import decide
from tests.verdict.arms import experiment, summary


def sentences(cache: dict[str, Any], observed: float | None, hits: tuple[float | None, float | None]) -> list[str]:
    arms = {"baseline": {"policy": "vllm_v1"}, "candidate": {"policy": "vllm_v1", "cache": cache}}
    runs = [
        summary(
            arm,
            repeat,
            {"hit_rate": hit},
            policy={"policy": "vllm_v1", "cache": cache if arm == "candidate" else {}},
            observed_hit_share=observed,
        )
        for repeat in range(5)
        for arm, hit in zip(("baseline", "candidate"), hits, strict=True)
    ]
    found = decide(experiment(arms=arms), runs).comparisons[0]
    return [line for line in found.conditions if line.startswith("prefix hits")]


def test_both_rates_stand_before_a_verdict_on_the_cache() -> None:
    (line,) = sentences({"eviction": "lfu"}, 0.31, (0.30, 0.35))
    assert "replayed: 30 % of looked-up prompt tokens (baseline), 35 % (candidate)" in line
    assert line.endswith("observed where it was logged: 31 %")


@pytest.mark.parametrize("hit", [0.05, 0.6])
def test_a_replay_that_does_not_share_as_the_traffic_did_is_said_to(hit: float) -> None:
    (line,) = sentences({"eviction": "lfu"}, 0.31, (hit, hit))
    assert "does not carry over" in line


def test_what_was_hit_is_said_to_be_unknown_where_no_log_says() -> None:
    (line,) = sentences({"eviction": "lfu"}, None, (0.3, None))
    assert "unknown (candidate)" in line and "not known is what was hit" in line


def test_other_layers_do_not_speak_of_the_cache() -> None:
    assert sentences({}, 0.31, (0.3, 0.3)) == []
