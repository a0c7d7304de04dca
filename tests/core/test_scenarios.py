"""Canned scenarios: a known effect of scheduling, reproduced with its outcome."""

import math
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from scheduler_core.drive.cuts import Outside
from scheduler_core.policies.predicting import foresight_of
from scheduler_core.policies.presets import Capacity, build_policy
from scheduler_core.policies.resolving import resolve_arms
from scheduler_core.sim.cost import StepCost
from scheduler_core.sim.fastforward import FastForward
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.parse import parse
from scheduler_core.spec.profiles import choose_profile
from scheduler_core.spec.yamltext import load_yaml
from scheduler_core.testing.builders import play, policy_spec, profile, request
from scheduler_core.types.records import Arrived, Finished, Preempted, Step
from scheduler_core.workload.freeze import freeze

SCENARIOS = Path(__file__).parents[2] / "examples" / "scenarios"


def gaps_ns(played: Any, index: Any) -> Any:
    """Times between the tokens of one request."""
    times = [s.available_ns for s in played.sink.of(Step) for row in s.grants if row[0] == index and row[5]]
    return [b - a for a, b in pairwise(times)]


def test_a_long_prompt_stalls_decoders_and_chunks_cure_it() -> None:
    """M16, G1. A decode step takes 2 ms, a prompt token 0.05 ms: 4,000 tokens at once hold everybody for 200 ms more.

    In chunks of 100 tokens no gap exceeds 2 + 0.05 x 100 = 7 ms, and the work done is the same.
    """
    requests = [*(request(index, 10, 100) for index in range(4)), request(4, 4000, 2, at_ms=50)]
    target = profile(base_ms=2, prefill_token_ms=0.05)
    worst = {}
    for budget in (8192, 104):
        played = play(policy_spec("vllm_v1", batch__token_budget=budget), requests, target=target)
        worst[budget] = max(gaps_ns(played, 0))
        assert sum(row[3] for s in played.sink.of(Step) for row in s.grants if row[4] == "prefill") == 4040
    assert worst[8192] == 202_000_000
    assert worst[104] == 7_000_000


def test_twice_the_cache_admits_more_at_once_and_is_not_thereby_fairer() -> None:
    """O6. Under arrival order and full reservation twice the blocks double who runs at once.

    Fairness (Jain's index over times in system) is a figure of its own: it is computed for both, not inferred.
    """
    requests = [request(index, 60, 100 if index % 4 else 20) for index in range(40)]
    most, jain = [], []
    for blocks in (60, 120):
        spec = policy_spec("vllm_v1", cache__admit="limit", cache__prefix="none")
        played = play(spec, requests, capacity=Capacity(blocks, 1000))
        most.append(max(step.running for step in played.sink.of(Step)))
        arrived = {r.request: r.at_ns for r in played.sink.of(Arrived)}
        stay = [r.at_ns - arrived[r.request] for r in played.sink.of(Finished)]
        jain.append(sum(stay) ** 2 / (len(stay) * sum(x * x for x in stay)))
    assert most[1] >= 1.8 * most[0]
    assert all(0 < value <= 1 for value in jain)
    assert jain[0] != jain[1]


def test_admission_keeps_the_tail_as_load_rises() -> None:
    """A5. One request takes 10 ms alone and one runs at a time. Offered 0.5, 2 and 4 times that rate:

    without admission the slowest wait grows with the backlog; a queue of at most 3 keeps it below 5 x 10 ms and
    refuses the excess instead.
    """
    curves = {}
    for limit in (0, 3):
        points = []
        for gap_ms in (20, 5, 2.5):
            requests = [request(index, 5, 10, at_ms=gap_ms * index) for index in range(100)]
            played = play(policy_spec("vllm_v1", batch__size=1, batch__queue_limit=limit), requests)
            arrived = {r.request: r.at_ns for r in played.sink.of(Arrived)}
            stay = [r.at_ns - arrived[r.request] for r in played.sink.of(Finished) if r.outcome == "finished"]
            points.append((max(stay) / 1e6, played.report.outcomes.get("rejected", 0)))
        curves[limit] = points
    free, guarded = curves[0], curves[3]
    assert free[0] == guarded[0] == (10.0, 0)
    assert free[1][0] > 400
    assert free[2][0] > free[1][0]
    assert [rejected for _, rejected in free] == [0, 0, 0]
    assert all(tail < 50 for tail, _ in guarded)
    assert 0 < guarded[1][1] < guarded[2][1]


def test_the_rule_of_admission_to_memory_decides_restarts_and_makespan() -> None:
    """1,045 blocks, three times the load that can be served: prompts of 512 and answers of 256 tokens in the mean.

    The less room must be in sight, the more requests restart. Too little of it costs makespan by restarts, the whole
    limit (1,500 tokens) costs it by leaving the pool idle; the prompt, or a good prediction, lies between.
    """
    draw, at, requests = random.Random(1), 0.0, []
    for index in range(400):
        at += draw.expovariate(33) * 1000
        prompt, output = (max(1, min(1400, round(draw.lognormvariate(math.log(m), 0.5)))) for m in (450, 225))
        requests.append(request(index, prompt, output, at_ms=at, output_limit=1500))
    target = profile(base_ms=8, prefill_token_ms=0.04, decode_request_ms=0.15, context_token_ms=0.00002)
    ends, restarts = {}, {}
    for admit in ("first_chunk", "known", "predicted", "limit"):
        spec = policy_spec(
            "vllm_v1",
            batch__size=128,
            batch__token_budget=512,
            cache__admit=admit,
            cache__prefix="none",
            predict__by="perfect",
        )
        outside = Outside(foresight=foresight_of(spec.predict))
        policy = build_policy(spec, Capacity(1045, 8192, target))
        report = FastForward(policy, StepCost(target), lambda row: None, outside=outside).run(requests)
        ends[admit], restarts[admit] = report.end_ns, report.preemptions
    assert restarts["first_chunk"] > 2 * restarts["known"] > 2 * restarts["predicted"] > restarts["limit"] == 0
    assert min(ends["known"], ends["predicted"]) < ends["first_chunk"] < ends["limit"]


def test_drafts_help_the_few_and_slow_the_many_down() -> None:
    """R12. `drafts-help-the-few`: a step takes 6.5 ms for up to some 300 tokens, and then in proportion to them.

    4 users x 5 tokens lie far below that, 400 x 5 far above. A step emits 1 + 0.6 + ... + 0.6^4 = 2.3 tokens for a
    request and takes four passes of a tenth more, so at best 2.3 / 1.4 = 1.65 times as fast.
    """
    spec = parse(ExperimentSpec, load_yaml((SCENARIOS / "drafts-help-the-few.yaml").read_text()))
    assert spec.target.modelled is not None
    target, _ = spec.target.modelled.profiles(lambda name, where, spread: choose_profile(name, [], where=where))
    gain = {}
    for load in spec.loads:
        requests, took = freeze(spec.workload_at(load)).requests, {}
        for arm, policy in resolve_arms(spec, target).items():
            built = build_policy(policy, Capacity(target.kv_blocks, target.model_length, target))
            took[arm] = FastForward(built, StepCost(target), lambda row: None).run(requests).end_ns
        gain[load] = took["one-by-one"] / took["drafting"]
    assert gain[4] == pytest.approx(1.65, abs=0.05)
    assert 0.9 < gain[100] < 1.1
    assert gain[400] < 0.9


def test_samples_that_share_a_prompt_need_less_of_the_pool_and_end_sooner() -> None:
    """`samples-share-a-prompt`: 600 to 1,000 tokens are 38 to 63 blocks of 500, six times of them at most 378.

    Apart, a prompt's samples are up to the whole pool, so that some are preempted; shared they are the prompt once and
    at most 11 blocks of each: a part of a block and 160 tokens. A sixth of the prompt tokens is computed.
    """
    spec = parse(ExperimentSpec, load_yaml((SCENARIOS / "samples-share-a-prompt.yaml").read_text()))
    requests = freeze(spec.workload).requests
    target = profile(base_ms=8, prefill_token_ms=0.2, decode_request_ms=0.15)
    stays, preempted, computed = {}, {}, {}
    for arm, policy in resolve_arms(spec, None).items():
        played = play(policy, requests, capacity=Capacity(500, 4096), target=target, law_interval=50)
        arrived = {r.request: r.at_ns for r in played.sink.of(Arrived)}
        stays[arm] = sum(r.at_ns - arrived[r.request] for r in played.sink.of(Finished))
        preempted[arm] = len(played.sink.of(Preempted))
        grants = [row for step in played.sink.of(Step) for row in step.grants]
        computed[arm] = sum(row[3] for row in grants if row[4] == "prefill")
    assert stays["shared"] < 0.5 * stays["apart"]
    assert preempted["apart"] > 10 * preempted["shared"]
    assert computed["apart"] == sum(request.prompt_tokens for request in requests)
    assert computed["shared"] < 0.2 * computed["apart"]


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.yaml")))
def test_scenario_files_can_be_played(path: Path) -> None:
    spec = parse(ExperimentSpec, load_yaml(path.read_text()))
    arms = resolve_arms(spec, None)
    plan = freeze(spec.workload)
    worth = spec.target.modelled.speculative if spec.target.modelled is not None else None
    target = profile().model_copy(update={"speculative": worth})
    for policy in arms.values():
        played = play(policy, plan.requests[:30], capacity=Capacity(120, 4096), target=target, law_interval=50)
        assert sum(played.report.outcomes.values()) == 30
