"""Feedback from the last rounds: what is seen, when, and what it changes."""

from itertools import pairwise
from typing import Any

import pytest

from scheduler_core.policies.feedback import AdaptiveChunk
from scheduler_core.policies.presets import Capacity
from scheduler_core.testing.builders import play, policy_spec, profile, request
from scheduler_core.types.records import Step
from scheduler_core.types.time import NS_PER_MS
from tests.core.test_fastforward import fused, plain

TARGET = profile(base_ms=2, prefill_token_ms=0.05)
# Four decode; a prompt of 4,000 tokens comes at 50 ms: at once it takes 202 ms.
SCENE = [*(request(index, 10, 150) for index in range(4)), request(4, 4000, 2, at_ms=50)]


def adaptive(**settings: Any) -> Any:
    return policy_spec("vllm_v1", batch__token_budget=1024, **settings)


def longest_gaps_ms(played: Any) -> list[float]:
    times = [s.available_ns for s in played.sink.of(Step) for row in s.grants if row[0] == 0 and row[5]]
    return sorted(((b - a) / NS_PER_MS for a, b in pairwise(times)), reverse=True)


def test_the_chunk_adapts_to_the_step_time_and_the_work_stays_the_same() -> None:
    """Budget 1,024 is 53 ms a step; a target of 12 ms allows 200 tokens. Off, three gaps exceed 50 ms.

    On, the first long step is seen with a lag of one round: two gaps exceed 50 ms, then the chunk shrinks.
    """
    off, on = play(adaptive(), SCENE, target=TARGET), play(adaptive(feedback__step_ms=12), SCENE, target=TARGET)
    assert sum(gap > 50 for gap in longest_gaps_ms(off)) >= 3
    assert sum(gap > 50 for gap in longest_gaps_ms(on)) == 2
    assert longest_gaps_ms(on)[2] < 45
    for played in (off, on):
        assert played.report.outcomes == {"finished": 5}
        assert sum(row[3] for s in played.sink.of(Step) for row in s.grants if row[4] == "prefill") == 4040


@pytest.mark.parametrize("lag", [1, 2])
def test_a_round_is_seen_only_after_its_lag(lag: int) -> None:
    """The first long step is the one that brings the prompt; the allowance may first move ``lag`` rounds after it."""
    played = play(adaptive(feedback__step_ms=12, feedback__lag=lag), SCENE, target=TARGET)
    chunks = [row[3] for s in played.sink.of(Step) for row in s.grants if row[0] == 4 and row[4] == "prefill"]
    first_smaller = next(number for number, (a, b) in enumerate(pairwise(chunks), start=1) if b < a)
    assert first_smaller == lag + 1


def test_idle_time_is_no_step() -> None:
    """One request a second, 3 steps each: nothing is ever long, so the allowance stays whole."""
    played = play(adaptive(feedback__step_ms=12), [request(i, 10, 3, at_ms=1000 * i) for i in range(5)])
    chunk = played.instance.policy.chunk
    assert isinstance(chunk, AdaptiveChunk)
    assert chunk.allowance == 1024


def test_nothing_set_changes_nothing_and_fast_forward_adapts_alike() -> None:
    assert not isinstance(play(adaptive(), SCENE[:1]).instance.policy.chunk, AdaptiveChunk)
    spec = policy_spec("vllm_v1", cache__block_size=4, batch__token_budget=24, feedback__step_ms=0.9)
    requests = [request(i, 9 + 3 * i, 14, at_ms=2 * i) for i in range(10)]
    steps, rows = plain(spec, requests, Capacity(60, 60))
    assert fused(spec, requests, Capacity(60, 60))[:2] == (steps, rows)
