"""Every policy on real kernels: its blocks are the core's blocks, its tokens those of each request alone, and a
recording of it plays again decision for decision."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest

from gpu_runner.engine.executor import TorchExecutor
from scheduler_core.drive.driver import Driver, DriveReport
from scheduler_core.drive.replay import RecordedStep, ReplayExecutor
from scheduler_core.policies.presets import Capacity, build_instance
from scheduler_core.policies.registry import manifests
from scheduler_core.policies.resolving import resolve
from scheduler_core.request.lifecycle import State
from scheduler_core.sched.instance import Instance
from scheduler_core.sim.executor import SimulatedExecutor
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.testing.builders import ListSink, policy_spec, profile
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.overlap import Overlap
from scheduler_core.types.patience import Patience
from scheduler_core.types.plan import StepPlan, StepResult
from scheduler_core.types.records import Finished, Preempted, Step
from scheduler_core.types.time import NS_PER_MS, Ns
from tests.engine.conftest import settings_for
from tests.engine.playing import Answer, alone

BLOCKS, HOST_BLOCKS, SIZE = 14, 12, 16
CAPACITY = Capacity(BLOCKS, 200)


def engine(overlap: Overlap = Overlap.NONE) -> TorchExecutor:
    sizes = {"kv_blocks": BLOCKS, "host_blocks": HOST_BLOCKS, "block_size": SIZE, "prefix_block_size": SIZE}
    made = TorchExecutor(settings_for("tiny", **sizes, overlap=overlap))
    made.load()
    made.start()
    return made


@pytest.fixture(scope="module")
def executor() -> TorchExecutor:
    return engine()


@pytest.fixture(scope="module")
def ahead() -> TorchExecutor:
    return engine(Overlap.SCHEDULE_AHEAD)


@dataclass
class Watched:
    """The engine, with its block tables set beside the core's at every step, and everything recorded for a replay."""

    engine: TorchExecutor
    instance: Instance
    steps: list[RecordedStep] = field(default_factory=list)
    copies: int = 0
    _planned: deque[tuple[str, Ns]] = field(default_factory=deque)
    _now: Ns = 0

    def now_ns(self) -> Ns:
        self._now = self.engine.now_ns()
        return self._now

    def open(self, request: PlannedRequest) -> None:
        self.engine.open(request)

    def close(self, request: int) -> None:
        self.engine.close(request)

    def launch(self, plan: StepPlan) -> None:
        self._planned.append((plan.digest(), self._now))
        self.engine.launch(plan)
        self.copies += len(plan.copies_out) + len(plan.copies_in)
        held = self.engine.tables()
        for request, blocks in self.instance.block_tables().items():
            known = held.pop(request, ())
            # What came back from the host ahead of its turn is told with the first grant.
            fetched = not known and self.instance.state_of(request) is State.PAUSED
            assert known == blocks or fetched, f"step {plan.id}, request {request}"
        assert not held, f"step {plan.id}: the engine holds blocks for {sorted(held)}, the core none"

    def wait(self, until_ns: Ns | None) -> StepResult | None:
        result = self.engine.wait(until_ns)
        if result is not None:
            self.steps.append(RecordedStep(*self._planned.popleft(), result))
        return result


def traffic() -> list[PlannedRequest]:
    """Sixteen requests, eight at once and eight 4 ms later, some with a common beginning; together far more than the
    pool holds.
    """
    return [
        PlannedRequest(
            index, index // 8 * 4 * NS_PER_MS, 20 + 7 * (index % 5), 10 + index % 4, 16, seed=index,
            prefix_blocks=(1, 2) if index % 3 == 0 and 20 + 7 * (index % 5) >= 32 else (),
        )
        for index in range(16)
    ]  # fmt: skip


def drive(spec: PolicySpec, executor: Any, **extra: Any) -> tuple[DriveReport, ListSink]:
    instance = extra.pop("instance", None) or build_instance(resolve(spec), CAPACITY)
    sink = ListSink()
    report = Driver(
        instance=instance,
        requests=extra.pop("requests", traffic()),
        executor=executor,
        sink=sink,
        stop=lambda: False,
        keep_digests=True,
        law_interval=1,
        prefix_block_size=SIZE,
        **extra,
    ).run()
    return report, sink


def watched(spec: PolicySpec, executor: TorchExecutor, **extra: Any) -> tuple[DriveReport, ListSink, Watched]:
    executor.start()
    instance = build_instance(resolve(spec), CAPACITY)
    watch = Watched(executor, instance)
    report, sink = drive(spec, watch, instance=instance, **extra)
    return report, sink, watch


def answers(executor: TorchExecutor) -> Iterator[Answer]:
    for planned in traffic():
        yield alone(executor, replace(planned, index=10_000 + planned.index))


SPECS = {
    **{name: policy_spec(name, cache__block_size=SIZE) for name in manifests() if name != "fastserve"},
    "fastserve": policy_spec(
        "fastserve",
        cache__block_size=SIZE,
        cache__host_blocks=HOST_BLOCKS,
        order__quantum_ms=0.01,
        order__prefill_us_per_token=0.001,
        batch__size=3,
    ),
    "vllm_v1, swapping": policy_spec(
        "vllm_v1", cache__block_size=SIZE, cache__preemption="swap", cache__host_blocks=HOST_BLOCKS
    ),
    "vllm_v1, keeping": policy_spec("vllm_v1", cache__block_size=SIZE, cache__preemption="keep"),
    "vllm_v1, small chunks": policy_spec("vllm_v1", cache__block_size=SIZE, batch__token_budget=24),
}


@pytest.mark.parametrize("name", SPECS)
def test_every_policy_on_kernels(name: str, executor: TorchExecutor) -> None:
    """Blocks agree at each step, tokens are those of each request alone (up to ties), and the replay is identical."""
    report, sink, watch = watched(SPECS[name], executor)
    assert report.outcomes == {"finished": 16}
    ended = {record.request: record for record in sink.of(Finished)}
    for index, expected in enumerate(answers(executor)):
        end = min(expected.ties, default=len(expected.tokens))
        assert ended[index].tokens[:end] == expected.tokens[:end]
        assert len(ended[index].tokens) == len(expected.tokens)
    again, _ = drive(SPECS[name], ReplayExecutor(watch.steps))
    assert again.plan_digests == report.plan_digests
    modelled, _ = drive(SPECS[name], SimulatedExecutor(profile=profile()))
    assert modelled.outcomes == report.outcomes
    if name in ("vllm_v1, swapping", "fastserve"):
        assert watch.copies > 0
        assert any(lane[0] == "swap" for step in sink.of(Step) for lane in step.lanes)
    if name == "vllm_v1":
        assert sink.of(Preempted)


@pytest.mark.parametrize("name", SPECS)
def test_every_policy_with_steps_planned_ahead(name: str, executor: TorchExecutor, ahead: TorchExecutor) -> None:
    """As above with two steps in flight, which the replay has too, and the model."""
    overlap = SPECS[name].execution.model_copy(update={"overlap": Overlap.SCHEDULE_AHEAD.value})
    spec = SPECS[name].model_copy(update={"execution": overlap})
    report, sink, watch = watched(spec, ahead, depth=2)
    assert report.outcomes == {"finished": 16}
    ended = {record.request: record for record in sink.of(Finished)}
    for index, expected in enumerate(answers(executor)):
        end = min(expected.ties, default=len(expected.tokens))
        assert ended[index].tokens[:end] == expected.tokens[:end]
    assert any(two.planned_ns < one.available_ns for one, two in pairwise(sink.of(Step)))
    again, _ = drive(spec, ReplayExecutor(watch.steps), depth=2)
    assert again.plan_digests == report.plan_digests
    modelled, _ = drive(spec, SimulatedExecutor(profile=profile(), overlap=Overlap.SCHEDULE_AHEAD), depth=2)
    assert modelled.outcomes == report.outcomes


def test_cancels_and_time_limits_act_on_kernels(executor: TorchExecutor) -> None:
    """Clients of every third request give up after 1 ms; batch requests have a tenth of one: nobody keeps a block, and
    the rest has the tokens it has without them.
    """
    requests = [
        replace(
            planned, cancel_ns=NS_PER_MS if planned.index % 3 == 1 else None, tier="batch" if index > 12 else "chat"
        )
        for index, planned in enumerate(traffic())
    ]
    report, sink, _ = watched(
        SPECS["vllm_v1"], executor, requests=requests, patience={"batch": Patience(None, NS_PER_MS // 10)}
    )
    assert sum(report.outcomes.values()) == 16
    assert report.outcomes["cancelled"] >= 1
    assert report.outcomes["timed_out"] >= 1
    assert executor.tables() == {}
    ended = {record.request: record for record in sink.of(Finished)}
    for index, expected in enumerate(answers(executor)):
        got = ended[index].tokens or []
        end = min([*expected.ties, len(got)])
        assert got[:end] == expected.tokens[:end]
        assert (len(got) == len(expected.tokens)) == (ended[index].outcome == "finished")


def test_what_can_never_fit_is_refused_and_the_others_are_served(executor: TorchExecutor) -> None:
    """14 blocks of 16: a prompt of 190 with 40 outputs needs 15 blocks."""
    requests = [PlannedRequest(0, 0, 190, 40, 40, seed=0), *(replace(r, index=r.index + 1) for r in traffic()[:4])]
    capacity = Capacity(BLOCKS, 400)
    executor.start()
    instance = build_instance(resolve(SPECS["vllm_v1"]), capacity)
    report, sink = drive(SPECS["vllm_v1"], Watched(executor, instance), instance=instance, requests=requests)
    assert report.outcomes == {"rejected": 1, "finished": 4}
    (refused,) = [record for record in sink.of(Finished) if record.outcome == "rejected"]
    assert (refused.need, refused.have) == (15, 14)


@pytest.mark.parametrize("overlap", ["two_stream", "schedule_ahead"])
@pytest.mark.parametrize("way", ["recompute", "swap"])
def test_a_step_launched_before_the_last_is_read_changes_no_token(overlap: str, way: str) -> None:
    """Two steps in flight, the second fed with tokens that the first still computes: the same answers, and computing
    lies over the host's work on other steps.
    """
    ahead = engine(Overlap(overlap))
    spec = policy_spec(
        "vllm_v1",
        cache__block_size=SIZE,
        cache__preemption=way,
        cache__host_blocks=HOST_BLOCKS,
        execution__overlap=overlap,
    )
    cancelled = [replace(r, cancel_ns=3 * NS_PER_MS if r.index == 5 else None) for r in traffic()]
    report, sink = drive(spec, ahead, depth=2, requests=cancelled)
    assert sum(report.outcomes.values()) == 16
    assert report.outcomes["finished"] >= 15
    ended = {record.request: record for record in sink.of(Finished)}
    ahead_of_reading = 0
    steps = sink.of(Step)
    for one, two in pairwise(steps):
        ahead_of_reading += two.planned_ns < one.available_ns
    assert ahead_of_reading > 0 or overlap == "two_stream"  # which needs somebody who is in no step
    for index, expected in enumerate(answers(engine())):
        got = ended[index].tokens or []
        end = min([*expected.ties, len(got)])
        assert got[:end] == expected.tokens[:end]
        assert (len(got) == len(expected.tokens)) == (ended[index].outcome == "finished")
