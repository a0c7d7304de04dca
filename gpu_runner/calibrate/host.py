"""What the host spends between two steps: planning, committing and writing evidence, measured in the real loop."""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from gpu_runner.engine.executor import TorchExecutor
from scheduler_core.drive.driver import Driver
from scheduler_core.evidence.live import LiveSampler, Tee
from scheduler_core.evidence.segments import SegmentWriter
from scheduler_core.policies.presets import Capacity, build_instance
from scheduler_core.spec.policy import BatchSection, CacheSection, PolicySpec
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.records import Record, RunStarted, Step
from scheduler_core.types.time import NS_PER_MS

_REQUESTS = 48
_PROMPT = 24
_OUTPUT = 24
_SAMPLE_NS = 200 * NS_PER_MS
_SEGMENT = 2000


@dataclass(frozen=True, slots=True)
class HostCost:
    """Time between two steps: ``base_ns`` and, for each decoding request, ``request_ns``."""

    base_ns: float
    request_ns: float


@dataclass(slots=True)
class _Gaps:
    """Collects, for each pair of neighbouring steps, the requests of the later one and the time between them."""

    requests: list[int] = field(default_factory=list)
    gaps: list[int] = field(default_factory=list)
    _available: int | None = None

    def write(self, record: Record) -> None:
        if not isinstance(record, Step):
            return
        started = min(lane[2] for lane in record.lanes if lane[0] != "host_gap")
        if self._available is not None:
            self.requests.append(len(record.grants))
            self.gaps.append(started - self._available)
        self._available = record.available_ns


def measure_host(executor: TorchExecutor) -> HostCost:
    """Play a small burst through the real driver, a continuous-batching policy and the real evidence writers."""
    settings = executor.settings
    policy = PolicySpec(
        policy="vllm_v1", cache=CacheSection(block_size=settings.block_size), batch=BatchSection(size=_REQUESTS)
    )
    capacity = Capacity(kv_blocks=settings.kv_blocks, model_length=executor.info.model_length)
    # Lengths are staggered so that batches of every size occur.
    lengths = [max(2, _OUTPUT * (index + 1) // _REQUESTS) for index in range(_REQUESTS)]
    requests = [PlannedRequest(i, 0, _PROMPT, output, output, seed=i) for i, output in enumerate(lengths)]
    gaps = _Gaps()
    with tempfile.TemporaryDirectory(prefix="headway-host-") as folder:
        writer = SegmentWriter(Path(folder), records_per_segment=_SEGMENT, on_closed=lambda _info: None)
        sampler = LiveSampler(interval_ns=_SAMPLE_NS, total=len(requests), on_sample=lambda _sample: None)
        sink = Tee(writer, sampler, gaps)
        sink.write(_started(settings.kv_blocks, settings.block_size, len(requests)))
        driver = Driver(
            instance=build_instance(policy, capacity),
            requests=requests,
            executor=executor,
            sink=sink,
            stop=lambda: False,
        )
        driver.run()
        writer.close()
    return _fit(gaps)


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


def _fit(gaps: _Gaps) -> HostCost:
    counts, times = np.array(gaps.requests, np.float64), np.array(gaps.gaps, np.float64)
    if times.size < 3:
        return HostCost(0.0, 0.0)
    kept = times <= np.quantile(times, 0.95)
    inputs = np.stack((np.ones(int(kept.sum())), counts[kept]), axis=1)
    (base, request), _norm = nnls(inputs, times[kept])
    return HostCost(float(base), float(request))
