"""Steps of the real loop: what the host spends between two of them, and how long they take in their natural order."""

import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from gpu_runner.calibrate.measure import computing_ns
from gpu_runner.calibrate.measured import Measured
from gpu_runner.engine.executor import TorchExecutor
from scheduler_core.drive.driver import Driver
from scheduler_core.evidence.live.sampler import LiveSampler, Tee
from scheduler_core.evidence.records.segments import SegmentWriter
from scheduler_core.policies.presets import Capacity, build_instance, build_policy
from scheduler_core.sim.cost import StepCost
from scheduler_core.sim.fastforward import FastForward
from scheduler_core.spec.policy import BatchSection, CacheSection, PolicySpec
from scheduler_core.spec.target import HostTime, Profile
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.intervals import COMPUTE, IntervalClass
from scheduler_core.types.records import Record, RunStarted, Step
from scheduler_core.types.shape import StepShape, shape_of_step
from scheduler_core.types.time import NS_PER_MS, NS_PER_S, Ns, ns_from_s

_SAMPLE_NS = 200 * NS_PER_MS
_SEGMENT = 2000
_KEPT_QUANTILE = 0.95
_LEAST_GAPS = 12
_MOST_TIMES = 4.0  # of the longest kept: what is longer was the machine's


@dataclass(slots=True)
class Loop:
    """A sink that keeps, for each step, its shape, the time of the forward, and the host's before and after it.

    A step after idle time has no host gap: it is not kept.
    """

    shapes: list[StepShape] = field(default_factory=list)
    device_ns: list[Ns] = field(default_factory=list)
    before_ns: list[Ns] = field(default_factory=list)
    after_ns: list[Ns] = field(default_factory=list)

    def write(self, record: Record) -> None:
        if not isinstance(record, Step):
            return
        gaps = [lane for lane in record.lanes if lane[0] == IntervalClass.HOST_GAP]
        if not gaps:
            return
        started = min(lane[2] for lane in record.lanes if lane[0] == COMPUTE)
        device = computing_ns(record.lanes)
        self.shapes.append(shape_of_step(record))
        self.device_ns.append(device)
        self.before_ns.append(started - gaps[0][2])
        self.after_ns.append(record.available_ns - started - device)

    def add(self, other: "Loop") -> None:
        """Take up what another run saw."""
        self.shapes += other.shapes
        self.device_ns += other.device_ns
        self.before_ns += other.before_ns
        self.after_ns += other.after_ns

    def steps(self, *, first_point: int, round_: int) -> list[Measured]:
        """Its steps as measured ones; those that decode equally many requests, or compute a prompt, form a point."""
        groups: dict[tuple[int, int], int] = {}
        return [
            Measured(shape, device, groups.setdefault(_group(shape), len(groups)) + first_point, round_)
            for shape, device in zip(self.shapes, self.device_ns, strict=True)
        ]

    def host(self) -> HostTime:
        """Least squares over the times before and after, without the longest 5 %, raised to the sum of all."""
        if len(self.shapes) < _LEAST_GAPS:
            return HostTime()
        rows = [(1.0, shape.decode_requests + shape.joined, shape.joined) for shape in self.shapes]
        inputs = np.array(rows, np.float64)
        base, request, joined = _kept_fit(inputs, self.before_ns)
        finish_base, finish_request = _kept_fit(inputs[:, :2], self.after_ns)
        return HostTime(
            base_ns=base,
            request_ns=request,
            joined_ns=joined,
            finish_base_ns=finish_base,
            finish_request_ns=finish_request,
        )


def _kept_fit(inputs: npt.NDArray[np.float64], measured: list[Ns]) -> list[float]:
    times = np.array(measured, np.float64)
    kept = times <= np.quantile(times, _KEPT_QUANTILE)
    solution, _norm = nnls(inputs[kept], times[kept])
    predicted = inputs @ solution
    level = np.minimum(times, _MOST_TIMES * times[kept].max()).sum() / max(predicted.sum(), 1.0)
    return [float(value * level) for value in solution]


def traffic(*, seconds: float, rate_rps: float, longest: int, seed: int) -> list[PlannedRequest]:
    """Poisson arrivals for ``seconds``: prompts of 16 to 320 tokens, outputs of 8 to 96, or what ``longest`` allows."""
    choices, at, requests = random.Random(seed), 0.0, list[PlannedRequest]()
    while not requests or at < seconds:
        prompt, output = choices.randint(16, 320), choices.randint(8, 96)
        output = min(output, longest // 2)
        prompt = min(prompt, longest - output)
        requests.append(PlannedRequest(len(requests), ns_from_s(at), prompt, output, output, seed=len(requests)))
        at += choices.expovariate(rate_rps)
    return requests


def play(executor: TorchExecutor, requests: list[PlannedRequest], loop: Loop, stop: Callable[[], bool]) -> None:
    """Serve ``requests`` through the real driver, continuous batching and the real evidence writers."""
    settings = executor.settings
    capacity = Capacity(kv_blocks=settings.kv_blocks, model_length=executor.info.model_length)
    executor.start()
    with tempfile.TemporaryDirectory(prefix="headway-loop-") as folder:
        writer = SegmentWriter(Path(folder), records_per_segment=_SEGMENT, on_closed=lambda _info: None)
        sampler = LiveSampler(interval_ns=_SAMPLE_NS, total=len(requests), on_sample=lambda _sample: None)
        sink = Tee(writer, sampler, loop)
        sink.write(_started(settings.kv_blocks, settings.block_size, len(requests)))
        driver = Driver(
            instance=build_instance(_policy(settings.block_size), capacity),
            requests=requests,
            executor=executor,
            sink=sink,
            stop=stop,
        )
        driver.run()
        writer.close()


def capacity_rps(profile: Profile, *, block_size: int, longest: int) -> float:
    """Requests of `traffic` a second that the model finishes when all wait at once."""
    requests = traffic(seconds=100, rate_rps=1, longest=longest, seed=0)
    together = [replace(request, arrival_ns=0) for request in requests]
    policy = build_policy(_policy(block_size), Capacity(profile.kv_blocks, profile.model_length))
    report = FastForward(policy, StepCost(profile), lambda _row: None).run(together)
    return len(together) * NS_PER_S / report.end_ns


def _policy(block_size: int) -> PolicySpec:
    return PolicySpec(policy="vllm_v1", cache=CacheSection(block_size=block_size), batch=BatchSection(size=128))


def _group(shape: StepShape) -> tuple[int, int]:
    return shape.prefill_tokens // 64, shape.decode_requests


def _started(kv_blocks: int, block_size: int, offered: int) -> RunStarted:
    return RunStarted(
        run="calibration",
        attempt=1,
        plan_digest="",
        policy_digest="",
        policy={},
        target={},
        level="cpu_kernels",
        source="kernel",
        offered=offered,
        kv_blocks=kv_blocks,
        block_size=block_size,
        token_budget=0,
    )
