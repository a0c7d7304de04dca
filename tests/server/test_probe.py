"""A server calibrated from outside: what it takes for its steps is found from when its tokens come."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_runner.calibrate.fit import fit
from gpu_runner.calibrate.measured import Measured
from gpu_runner.calibrate.probe.design import Limits, plan, points
from gpu_runner.calibrate.probe.probe import calibrate_server
from gpu_runner.calibrate.probe.reading import Manners, Read, Stream, measured, read
from gpu_runner.server.mock.behaviour import Behaviour, Scheduled
from gpu_runner.server.mock.process import mock_server
from scheduler_core.drive.driver import Driver
from scheduler_core.policies.presets import Capacity, build_instance
from scheduler_core.policies.resolving import resolve
from scheduler_core.sim.cost import StepCost
from scheduler_core.sim.executor import SimulatedExecutor
from scheduler_core.spec.job import CalibrationJob
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.target import TRUSTED_ERROR, Affine, Profile
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.errors import InputError
from scheduler_core.types.records import Arrived, Finished, Record, Step
from scheduler_core.types.shape import StepShape, causal_pairs
from scheduler_core.types.time import NS_PER_MS

TRUE = Profile(
    name="true", model="m", device="d", dtype="none", residual_share=0, drift_share=0, held_out_error_share=0,
    cost=Affine(
        base_ns=12e6, prefill_token_ns=60_000, decode_request_ns=400_000, context_token_ns=1_500, prefill_pair_ns=40
    ),
    domain={}, steps_measured=1, measured_on={}, model_length=2048,
)  # fmt: skip
BLOCKS, SIZE = 2400, 16
SHAPES = [
    StepShape(0, 1, 300, 0), StepShape(0, 16, 16 * 300, 0), StepShape(0, 32, 32 * 280, 0),
    StepShape(0, 8, 8 * 1030, 0), StepShape(256, 7, 7 * 280, causal_pairs(0, 256), 1),
    StepShape(500, 1, 300, causal_pairs(0, 500), 1), StepShape(504, 7, 7 * 280, causal_pairs(504, 504)),
]  # fmt: skip


class Client:
    """A sink that sees what a client would: each token ``late_ns`` at most after its step."""

    def __init__(self, *, entry_ns: int, late_ns: int) -> None:
        self.streams: dict[int, Stream] = {}
        self._entry_ns, self._late_ns, self._choices = entry_ns, late_ns, random.Random(1)

    def write(self, record: Record) -> None:
        if isinstance(record, Arrived):
            self.streams[record.request] = Stream(sent_ns=record.at_ns - self._entry_ns)
        elif isinstance(record, Step):
            for request, _, _, _, _, sampled, _ in record.grants:
                if sampled:
                    at = record.available_ns + self._choices.randint(0, self._late_ns)
                    self.streams[request].chunks.append((at, 1))
        elif isinstance(record, Finished):
            self.streams[record.request].finished = record.outcome == "finished"


def served(policy: PolicySpec, requests: list[PlannedRequest], client: Client) -> Mapping[int, Stream]:
    Driver(
        instance=build_instance(policy, Capacity(BLOCKS, TRUE.model_length)), requests=requests,
        executor=SimulatedExecutor(profile=TRUE), sink=client, stop=lambda: False,
    ).run()  # fmt: skip
    return client.streams


def readings(preset: str, manners: Manners, *, late_ns: int, entry_ns: int = 0) -> list[tuple[int, int, Read]]:
    """What two rounds of the probe show of a modelled server with a budget of 512 tokens and a batch of 48."""
    policy = resolve(
        PolicySpec.model_validate(
            {"policy": preset, "batch": {"token_budget": 512, "size": 48}, "cache": {"block_size": SIZE}}
        )
    )
    limits = Limits(TRUE.model_length, BLOCKS * SIZE, batch=48, budget=manners.budget)
    found = []
    for round_ in range(2):
        requests, placed = plan(points(limits), limits, seed=round_)
        streams = served(policy, requests, Client(entry_ns=entry_ns, late_ns=late_ns))
        found += [(item.point.number, round_, read(item, requests, streams, manners)) for item in placed]
    return found


def errors(cost: Affine, shapes: list[StepShape]) -> list[float]:
    """Relative errors of a fitted cost."""
    true, mine = StepCost(TRUE), StepCost(TRUE.model_copy(update={"cost": cost}))
    return [mine.step_ns(shape, 0) / true.step_ns(shape, 0) - 1 for shape in shapes]


@pytest.mark.parametrize("budget", [512, None])
def test_step_times_of_a_server_that_mixes_are_found_to_a_percent(budget: int | None) -> None:
    """Stamps up to 2 ms late, where steps take 12 to 80 ms; the budget known, or not."""
    found = readings("vllm_v1", Manners(budget, None, mixes=True), late_ns=2 * NS_PER_MS)
    steps = measured(found)
    assert {step.shape.decode_requests for step in steps} >= {1, 2, 7, 8, 31, 32}
    assert max(step.shape.prefill_tokens for step in steps) >= (400 if budget else 256)
    within = SHAPES if budget else SHAPES[:5]  # what a step held is seen only where its prompt fitted
    assert max(abs(error) for error in errors(fit(steps).cost, within)) < 0.02


def test_step_times_of_a_server_whose_prompts_have_their_own_steps() -> None:
    found = readings("sglang", Manners(512, None, mixes=False), late_ns=NS_PER_MS)
    steps = measured(found)
    assert all(step.shape.decode_requests == 0 or step.shape.prefill_tokens == 0 for step in steps)
    shapes = [*SHAPES[:4], StepShape(256, 0, 0, causal_pairs(0, 256), 1)]
    assert max(abs(error) for error in errors(fit(steps).cost, shapes)) < 0.03


def test_every_step_that_is_read_is_one_that_the_server_made() -> None:
    """With exact stamps each reading is a step, or a window of some, of the true cost: to 0.1 %, none is misread."""
    true = StepCost(TRUE)
    for step in measured(readings("vllm_v1", Manners(512, None, mixes=True), late_ns=0)):
        assert step.duration_ns == pytest.approx(true.step_ns(step.shape, 0), rel=1e-3), step


def test_steps_taken_for_far_shorter_than_they_were_do_not_bend_the_fit() -> None:
    """Of 40 steps of the true cost three prompts of 300 tokens seem to take 5 ms, a sixth of it: every other is found
    to 3 % all the same. (With errors relative to what was measured those three would weigh more than all others.)
    """
    true = StepCost(TRUE)
    shapes = [StepShape(64 * (n % 9), 1 + n % 7, 300 * (1 + n % 7), causal_pairs(0, 64 * (n % 9))) for n in range(40)]
    steps = [Measured(shape, true.step_ns(shape, 0), n, n % 2) for n, shape in enumerate(shapes)]
    short = [Measured(StepShape(300, 1, 300, causal_pairs(0, 300)), 5 * NS_PER_MS, 40 + n, n % 2) for n in range(3)]
    assert max(abs(error) for error in errors(fit([*steps, *short]).cost, shapes)) < 0.03


def test_of_steps_alike_the_middle_one_counts_and_a_round_far_from_the_others_does_not() -> None:
    """Rounds of 10, 11 and 50 ms, with one step of each stretched: the middles are 10, 11 and 50, and 50 is far off."""
    shape = StepShape(0, 2, 100, 0)

    def reading(ms: int) -> Read:
        return Read(steps=[("decode 2", shape, part * NS_PER_MS) for part in (ms, 100 * ms, ms)])

    steps = measured([(0, round_, reading(ms)) for round_, ms in enumerate((10, 11, 50))])
    assert [(step.duration_ns // NS_PER_MS, step.round, step.point) for step in steps] == [(10, 0, 0), (11, 1, 0)]


def mocked(**batch: Any) -> Behaviour:
    policy = resolve(PolicySpec.model_validate({"policy": "vllm_v1", "batch": batch}))
    return Behaviour(dev_mode=True, scheduled=Scheduled(policy=policy, profile=TRUE, kv_blocks=BLOCKS))


def probed(url: str, folder: Path, *, seconds: float, **job: Any) -> Profile:
    job = {"run": "r", "name": "mine", "server": {"url": url, "warmup_requests": 1}, "workdir": str(folder), **job}
    return calibrate_server(
        CalibrationJob.model_validate(job), seconds=seconds, progress=lambda share: None, stop=lambda: False
    )


@pytest.mark.timeout(120)
def test_a_server_is_probed_and_becomes_a_profile(tmp_path: Path) -> None:
    """In real time: a mock never makes a step faster than its clock says, and a busy test machine only slower ones."""
    with mock_server(mocked(token_budget=512, size=48)) as url:
        found = probed(url, tmp_path, seconds=10)
    assert (found.name, found.kind, found.model) == ("mine", "measured", "mock")
    assert (found.kv_blocks, found.model_length) == (BLOCKS, TRUE.model_length)
    assert found.measured_on["token_budget"] == 512 and found.measured_on["size"] == 48
    assert found.domain["decode_requests"] >= 2 and found.domain["prefill_tokens"] >= 64
    assert found.steps_measured > 50 and found.residual_share > 0 and found.held_out_error_share > 0
    assert 0.9 * 12e6 < StepCost(found).step_ns(StepShape(0, 1, 300, 0), 0) < 60e6


def test_a_server_that_refuses_says_why(tmp_path: Path) -> None:
    with mock_server(mocked(token_budget=512, size=48)) as url, pytest.raises(InputError, match=r"no model 'other'"):
        probed(url, tmp_path, seconds=5, server={"url": url, "model": "other"})


@pytest.mark.parametrize(("error", "warned"), [(0.0, False), (TRUSTED_ERROR, False), (TRUSTED_ERROR + 0.01, True)])
def test_a_profile_too_uncertain_to_plan_by_says_so(error: float, warned: bool) -> None:
    warning = TRUE.model_copy(update={"held_out_error_share": error}).warning
    assert ("calibrate again" in warning) is warned
    assert bool(warning) is warned
