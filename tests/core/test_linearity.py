"""Work grows with what happens, not with what waits: counted in calls, which no busy machine can change."""

import random
import sys
from collections.abc import Callable
from typing import Any

import pytest

from scheduler_core.policies.presets import Capacity, build_policy
from scheduler_core.request.spec import RequestSpec
from scheduler_core.sched.instance import Instance
from scheduler_core.sim.cost import StepCost
from scheduler_core.sim.fastforward import FastForward
from scheduler_core.testing.builders import policy_spec, profile, request
from scheduler_core.types.plan import GrantResult, StepResult

TARGET = profile(base_ms=8, prefill_token_ms=0.04, decode_request_ms=0.15, context_token_ms=0.00002)


def calls(work: Callable[[], object]) -> int:
    """Python and built-in functions that ``work`` calls."""
    count = 0

    def seen(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def simulation(count: int, rate_rps: float, **settings: Any) -> Callable[[], object]:
    draw, at_ms, requests = random.Random(3), 0.0, []
    for index in range(count):
        at_ms += draw.expovariate(rate_rps) * 1e3
        requests.append(request(index, draw.randint(50, 900), draw.randint(20, 450), at_ms=at_ms, output_limit=4096))
    spec = policy_spec("vllm_v1", batch__size=64, batch__token_budget=512, **settings)
    played = FastForward(build_policy(spec, Capacity(8_192, 8_192)), StepCost(TARGET), lambda row: None)
    return lambda: played.run(iter(requests))


@pytest.mark.parametrize(
    ("rate_rps", "settings", "most"),
    [
        (8, {"cache__prefix": "none"}, 160),
        (40, {"cache__prefix": "none"}, 130),  # several times what it can serve: the queue grows all the time
        (8, {"cache__prefix": "hash"}, 260),
        (40, {"cache__prefix": "hash"}, 230),
        (40, {"cache__prefix": "none", "cache__blocks": 1_045}, 260),
    ],
)
def test_calls_per_request_do_not_grow_with_the_run(rate_rps: Any, settings: Any, most: Any) -> None:
    """Four times the requests, four times the work, within a tenth; and an absolute bound on it."""
    short, long = (calls(simulation(count, rate_rps, **settings)) / count for count in (400, 1600))
    assert long < 1.1 * short
    assert long < most


def stepping(running: int, queued: int) -> float:
    """Calls per planned and completed step."""
    spec = policy_spec("vllm_v1", batch__size=running, batch__token_budget=8_192, cache__prefix="none")
    instance = Instance(build_policy(spec, Capacity(20_000, 8_192)))
    for index in range(running + queued):
        instance.submit(RequestSpec(index, 0, 32, 4_000), 0)

    def steps() -> None:
        for _ in range(10):
            planned = instance.plan(0)
            assert planned is not None
            answers = tuple([GrantResult(None)] * len(planned.plan.grants))
            instance.complete(StepResult(planned.plan.id, answers, (), 0, 1))
            instance.take_records()

    steps()
    return calls(steps) / 10


def test_calls_per_step_are_flat_in_the_queue_and_linear_in_the_batch() -> None:
    """Of those who wait only the head is looked at; eight times the batch is at most nine times the work."""
    assert stepping(16, 5_000) == pytest.approx(stepping(16, 50), rel=0.01)
    assert stepping(128, 0) < 9 * stepping(16, 0)
