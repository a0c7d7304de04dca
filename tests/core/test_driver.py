"""The loop: order of delivery, dependent turns, stops, failures, and the same answer in every process."""

import json
import os
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from scheduler_core.drive.driver import FAILURES_IN_A_ROW, Driver
from scheduler_core.drive.replay import RecordedStep, ReplayExecutor
from scheduler_core.policies.presets import Capacity, build_instance
from scheduler_core.sim.executor import SimulatedExecutor
from scheduler_core.testing.builders import ListSink, Stepper, play, policy_spec, profile, request
from scheduler_core.types.errors import ExecutorError
from scheduler_core.types.overlap import Overlap
from scheduler_core.types.plan import StepResult
from scheduler_core.types.records import Arrived, Finished, RunFinished, Step
from scheduler_core.types.time import ns_from_ms

VLLM = policy_spec("vllm_v1")


def drive(requests: Any, executor: Any, *, spec: Any = VLLM, **options: Any) -> Any:
    sink = ListSink()
    instance = build_instance(spec, Capacity(100, 1000))
    driver = Driver(
        instance=instance, requests=requests, executor=executor, sink=sink, stop=lambda: False, keep_digests=True
    )
    for name, value in options.items():
        setattr(driver, name, value)
    return driver.run(), sink


class FlakyExecutor(SimulatedExecutor):
    """Fails the steps with the given numbers."""

    def __init__(self, failing: Any) -> None:
        super().__init__(profile=profile())
        self.failing = failing

    def wait(self, until_ns: Any) -> Any:
        result = super().wait(until_ns)
        if result is None or result.plan_id not in self.failing:
            return result
        return StepResult(result.plan_id, (), (), result.started_ns, result.available_ns, "out of memory")


def test_a_next_turn_arrives_a_think_time_after_the_answer() -> None:
    """Turn 1: 10 tokens at 1 ms a step, ends at 10 ms; turn 2 thinks 5 ms, so it arrives at 15."""
    turns = [request(0, 8, 10), request(1, 20, 2, at_ms=5, after=(0,), session=1, turn=1)]
    played = play(VLLM, turns)
    arrivals = {record.request: record.at_ns for record in played.sink.of(Arrived)}
    assert arrivals == {0: 0, 1: ns_from_ms(15)}
    assert played.report.outcomes == {"finished": 2}


def test_a_refused_turn_still_releases_the_next() -> None:
    turns = [request(0, 999_999, 1), request(1, 5, 1, at_ms=3, after=(0,))]
    played = play(VLLM, turns)
    assert played.report.outcomes == {"rejected": 1, "finished": 1}


def test_arrivals_during_a_step_are_seen_when_they_come() -> None:
    """A 100 ms step runs from 0; the request of 30 ms is taken up at 30, not at 100."""
    played = play(VLLM, [request(0, 5, 1), request(1, 5, 1, at_ms=30)], target=profile(base_ms=100))
    assert [(r.at_ns, r.seen_ns) for r in played.sink.of(Arrived)] == [(0, 0), (ns_from_ms(30), ns_from_ms(30))]


def test_stopping_cancels_what_is_open() -> None:
    calls = iter(range(100))
    report, sink = drive(
        [request(i, 5, 50, at_ms=i) for i in range(5)],
        SimulatedExecutor(profile=profile()),
        stop=lambda: next(calls) >= 4,
    )
    (end,) = sink.of(RunFinished)
    assert not report.complete
    assert (end.complete, end.reason) == (False, "stopped")
    assert {record.outcome for record in sink.of(Finished)} == {"cancelled"}
    assert len(sink.of(Finished)) == len(sink.of(Arrived))


def test_a_failed_step_fails_its_requests_and_the_run_goes_on() -> None:
    report, sink = drive([request(0, 5, 9), request(1, 5, 2, at_ms=20)], FlakyExecutor({1}))
    assert report.complete
    by_id = {record.request: record for record in sink.of(Finished)}
    assert (by_id[0].outcome, by_id[0].reason, by_id[0].output_tokens) == ("failed", "out of memory", 1)
    assert by_id[1].outcome == "finished"


def test_an_executor_that_always_fails_ends_the_run_with_a_reason() -> None:
    requests = [request(i, 5, 9, at_ms=10 * i) for i in range(9)]
    report, sink = drive(requests, FlakyExecutor(set(range(99))))
    assert not report.complete
    assert report.steps == FAILURES_IN_A_ROW
    (end,) = sink.of(RunFinished)
    assert end.reason == "3 steps failed in a row"


def test_static_waits_for_a_full_batch_only_as_long_as_it_may() -> None:
    """Size 4, wait 50 ms: the lone request of 0 ms starts at 50; the last one, nobody can follow, starts at once."""
    spec = policy_spec("static", batch__size=4, batch__max_wait_ms=50)
    played = play(spec, [request(0, 5, 1), request(1, 5, 1, at_ms=500)])
    assert [step.planned_ns for step in played.sink.of(Step)] == [ns_from_ms(50), ns_from_ms(500)]


def test_static_prefills_a_batch_larger_than_the_budget_in_steps_and_admits_nobody_meanwhile() -> None:
    """Budget 10, prompts 8 + 8, a third arrives in between: 8 + 2, 6, then both decode together."""
    spec = policy_spec("static", batch__size=8, batch__token_budget=10)
    played = play(spec, [request(0, 8, 2), request(1, 8, 2), request(2, 8, 1, at_ms=0.5)])
    grants = [[(row[0], row[3]) for row in step.grants] for step in played.sink.of(Step)]
    assert grants == [[(0, 8), (1, 2)], [(1, 6)], [(0, 1), (1, 1)], [(2, 8)]]


def test_a_member_admitted_without_budget_brings_its_hits_with_its_first_grant() -> None:
    """Blocks of 4, budget 8: both share their first block, the first prompt takes the whole budget.

    The second is admitted with that block as a hit (it is indexed while planning) and granted its 1 token later: that
    grant names the hit block and the new one.
    """
    spec = policy_spec("static", batch__token_budget=8, cache__block_size=4, cache__prefix="hash")
    stepper = Stepper(spec, Capacity(20, 100))
    stepper.submit(0, 8, limit=2, prefix_blocks=(1,), prefix_block_size=4)
    stepper.submit(1, 5, limit=2, prefix_blocks=(1,), prefix_block_size=4)
    first = stepper.plan()
    stepper.complete(first)
    second = stepper.plan()
    (before,), (grant,) = first.plan.grants, second.plan.grants
    assert (grant.request, grant.start, grant.length, grant.hit_tokens) == (1, 4, 1, 4)
    assert grant.new_blocks[0] == before.new_blocks[0]
    assert len(grant.new_blocks) == 2


def test_a_static_batch_whose_last_member_is_preempted_gives_up_its_slots() -> None:
    """Size 2: one member ends and holds its slot, the other is preempted by order: both slots are free again."""
    stepper = Stepper(policy_spec("static", batch__size=2), Capacity(10, 100))
    for index in range(3):
        stepper.submit(index, 5, limit=5)
    stepper.step(last=[1])
    stepper.instance.preempt(0, now_ns=stepper.now)
    assert list(stepper.step()) == [0, 2]


def test_the_queue_limit_refuses_newcomers_with_figures() -> None:
    spec = policy_spec("vllm_v1", batch__size=1, batch__queue_limit=2)
    played = play(spec, [request(i, 5, 5) for i in range(5)])
    refused = [record for record in played.sink.of(Finished) if record.outcome == "rejected"]
    assert [(r.reason, r.need, r.have) for r in refused] == [("queue_full", 3, 2)] * 3


@pytest.mark.parametrize("overlap", [Overlap.NONE, Overlap.TWO_STREAM, Overlap.SCHEDULE_AHEAD])
def test_replay_takes_the_same_decisions_and_finds_the_first_that_differs(overlap: Overlap) -> None:
    """With as many steps in flight as the recording had; clients that give up do so at the same moment."""
    requests = [
        request(
            i, 20 + i, 5, at_ms=2 * i, cancel_ns=ns_from_ms(9) if i % 4 == 1 else None, prefix_blocks=(1,) * (i % 2)
        )
        for i in range(10)
    ]
    target = profile(base_ms=3, prefill_token_ms=0.1)
    spec = policy_spec("vllm_v1", execution__overlap=overlap.value)

    class Recorder(SimulatedExecutor):
        steps: list[RecordedStep] = []
        planned: deque[tuple[str, int]] = deque()

        def launch(self, plan: Any) -> None:
            now = self.now_ns()
            super().launch(plan)
            self.planned.append((plan.digest(), now))

        def wait(self, until_ns: Any) -> Any:
            result = super().wait(until_ns)
            if result is not None:
                self.steps.append(RecordedStep(*self.planned.popleft(), result))
            return result

    depth = overlap.steps_in_flight
    recorder = Recorder(profile=target, overlap=overlap)
    report, sink = drive(requests, recorder, spec=spec, depth=depth)
    assert report.outcomes["cancelled"] > 0
    replayed, again = drive(requests, ReplayExecutor(recorder.steps), spec=spec, depth=depth)
    assert replayed.plan_digests == report.plan_digests
    assert again.records == sink.records
    with pytest.raises(ExecutorError, match="step 0 differs"):
        drive(requests, ReplayExecutor(recorder.steps), spec=policy_spec("static", batch__token_budget=16))


SCRIPT = """
import json, random
from scheduler_core.testing.builders import play, policy_spec, profile, request
from scheduler_core.policies.presets import Capacity
draw = random.Random(3)
requests = [request(i, draw.randint(5, 90), draw.randint(1, 40), at_ms=draw.random() * 300, tenant=f"t{i % 3}",
                    priority=i % 2, prefix_blocks=tuple(range(i % 4))) for i in range(60)]
for name, settings in (("static", {}), ("vllm_v1", {"order__by": "priority"})):
    played = play(policy_spec(name, **settings), requests, capacity=Capacity(40, 1000), target=profile(base_ms=4))
    print(json.dumps(played.report.plan_digests))
"""


def test_the_same_plans_in_every_process_and_under_every_hash_seed() -> None:
    root = Path(__file__).parents[2]
    outputs = set()
    for seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True, timeout=60
        )
        outputs.add(done.stdout)
    (output,) = outputs
    assert all(len(json.loads(line)) > 20 for line in output.splitlines())


class Watched(SimulatedExecutor):
    """Counts launches; where ``at_once``, a step has ended when its launch returns, as on a CPU."""

    def __init__(self, *, at_once: bool) -> None:
        super().__init__(profile=profile())
        self.at_once, self.launches = at_once, 0

    def launch(self, plan: Any) -> None:
        super().launch(plan)
        self.launches += 1
        if self.at_once:
            self._now = self._launched[0][0]


class Noting(ListSink):
    """How many steps had been launched when each record was written."""

    def __init__(self, executor: Watched) -> None:
        super().__init__()
        self.executor, self.launched = executor, list[int]()

    def write(self, record: Any) -> None:
        super().write(record)
        self.launched.append(self.executor.launches)


@pytest.mark.parametrize("at_once", [True, False])
def test_evidence_is_written_beside_the_next_step_where_that_computes_by_itself(at_once: bool) -> None:
    """Two requests of 4 tokens at once, 4 steps. Between two steps nothing is written, unless the host computes."""
    executor = Watched(at_once=at_once)
    sink = Noting(executor)
    instance = build_instance(VLLM, Capacity(100, 1000))
    requests = [request(0, 8, 4), request(1, 8, 4)]
    Driver(
        instance=instance,
        requests=requests,
        executor=executor,
        sink=sink,
        stop=lambda: False,
        law_interval=1,
    ).run()
    steps = [number for record, number in zip(sink.records, sink.launched, strict=True) if isinstance(record, Step)]
    assert steps == ([1, 2, 3, 4] if at_once else [2, 3, 4, 4])
    assert (
        sink.records
        == play(VLLM, requests, capacity=Capacity(100, 1000), target=profile(), law_interval=1).sink.records
    )
