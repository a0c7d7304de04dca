"""The engine's speed: output tokens per CPU second, host time per step, and how near it is to the physical limits.

The traffic is the one of published engine comparisons at this size: 64 requests at once, prompts of 128 to 512 tokens,
outputs of 32 to 128, a budget of 2,048 tokens a step, prefix cache off, greedy, one thread. Process CPU seconds count,
so other work on the machine does not.

Two limits, both measured in the same run on one thread. ``read_bandwidth_gb_per_s`` is that of a buffer beyond a core's
own caches; ``share_of_limit_decode`` is the time to read weights and KV once at it, over the time a decode step takes,
``share_of_plain_limit_decode`` the same for weights of as many bytes as their number format has, which an engine that
holds them in fewer may pass.
``gemm_rate_gflop_per_s`` is the best rate of PyTorch's own product of large square matrices, not of ours;
``share_of_limit_prefill`` is the time that the operations of steps with prompts take at it, over the time of those
steps. So a share may be above 1: weights that fit a cache are read faster, and products of ours may be faster than
PyTorch's. ``limit_of_decode`` names the longer of two times, that of reading and that of computing, the latter at the
rate of PyTorch's product of as many rows. ``decode_step_share`` and ``prompt_step_share`` say where the time goes; they
come from an instrumented engine that gives no speed figures. ``most_over_transformers`` is how many times
transformers' speed an engine reached that did the operations of the traffic at the rate of large products and nothing
else.
"""

import random
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bench import harness
from bench.limits import figures as limits
from bench.limits.spent import timed, watched
from bench.peers import engines
from gpu_runner.engine.executor import TorchExecutor
from gpu_runner.engine.settings import EngineSettings
from scheduler_core.drive.driver import Driver
from scheduler_core.evidence.live.sampler import LiveSampler
from scheduler_core.evidence.records.segments import SegmentWriter
from scheduler_core.policies.presets import Capacity, build_instance
from scheduler_core.spec.policy import BatchSection, CacheSection, PolicySpec
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.intervals import COMPUTE
from scheduler_core.types.records import Record, RunStarted, Step
from scheduler_core.types.time import NS_PER_MS, NS_PER_US

SHAPES = {"S": ("demo-s", 64), "M": ("shape-m", 64), "L": ("shape-l", 24)}
DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
BLOCK_SIZE = 32
BUDGET = 2048


def requests(count: int, *, share: float = 1.0) -> list[PlannedRequest]:
    """The traffic, lengths drawn with a fixed seed and scaled by ``share``."""
    choices = random.Random(0)
    rows = []
    for index in range(count):
        prompt, output = choices.randint(128, 512), choices.randint(32, 128)
        output = max(2, round(output * share))
        rows.append(PlannedRequest(index, 0, max(8, round(prompt * share)), output, output, seed=index))
    return rows


@dataclass(slots=True)
class Observer:
    """A sink that keeps what the figures need: shapes and times of steps, and the time spent in real evidence."""

    evidence: list[Callable[[Record], None]] = field(default_factory=list)
    evidence_ns: int = 0
    steps: list[Step] = field(default_factory=list)

    def write(self, record: Record) -> None:
        began = time.perf_counter_ns()
        for write in self.evidence:
            write(record)
        self.evidence_ns += time.perf_counter_ns() - began
        if isinstance(record, Step):
            self.steps.append(record)


@dataclass(frozen=True, slots=True)
class Played:
    """One run: its output tokens, the CPU and wall time of serving them, and what was observed."""

    output_tokens: int
    cpu_s: float
    wall_s: float
    observer: Observer


def play(executor: TorchExecutor, traffic: list[PlannedRequest], *, size: int, evidence: bool = False) -> Played:
    """Serve ``traffic`` with continuous batching; with ``evidence`` the real writers run too."""
    settings = executor.settings
    policy = PolicySpec(
        policy="vllm_v1",
        cache=CacheSection(block_size=settings.block_size, prefix="none"),
        batch=BatchSection(size=size, token_budget=BUDGET),
    )
    capacity = Capacity(kv_blocks=settings.kv_blocks, model_length=executor.info.model_length)
    observer = Observer()
    with TemporaryDirectory() as folder:
        writer = SegmentWriter(Path(folder), records_per_segment=2000, on_closed=lambda _info: None)
        sampler = LiveSampler(interval_ns=200 * NS_PER_MS, total=len(traffic), on_sample=lambda _sample: None)
        if evidence:
            observer.evidence = [writer.write, sampler.write]
        observer.write(_started(settings, len(traffic)))
        driver = Driver(
            instance=build_instance(policy, capacity),
            requests=traffic,
            executor=executor,
            sink=observer,
            stop=lambda: False,
        )
        executor.start()
        cpu, wall = time.process_time(), time.perf_counter()
        report = driver.run()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        if evidence:
            writer.close()
    if report.outcomes != {"finished": len(traffic)}:
        raise RuntimeError(f"not every request finished: {report.outcomes}")
    return Played(sum(request.output_tokens for request in traffic), cpu, wall, observer)


def _started(settings: EngineSettings, offered: int) -> RunStarted:
    return RunStarted(
        run="bench",
        attempt=1,
        plan_digest="",
        policy_digest="",
        policy={},
        target={},
        level="cpu_kernels",
        source="kernel",
        offered=offered,
        kv_blocks=settings.kv_blocks,
        block_size=settings.block_size,
        token_budget=BUDGET,
    )


def settings_of(shape: str, dtype: str, threads: int = 1) -> EngineSettings:
    """An engine with room for all of its requests at once."""
    model, count = SHAPES[shape]
    blocks = count * -(-(512 + 128) // BLOCK_SIZE)
    return EngineSettings(
        model=model, device="cpu", dtype=DTYPES[dtype], threads=threads, kv_blocks=blocks, block_size=BLOCK_SIZE
    )


class Engines:
    """One engine for each number of threads, loaded when it is first asked for."""

    def __init__(self, shape: str, dtype: str) -> None:
        self._shape, self._dtype = shape, dtype
        self._loaded: dict[int, TorchExecutor] = {}

    def of(self, threads: int) -> TorchExecutor:
        """The engine on so many threads."""
        if threads not in self._loaded:
            self._loaded[threads] = TorchExecutor(settings_of(self._shape, self._dtype, threads))
            self._loaded[threads].load()
        torch.set_num_threads(threads)
        return self._loaded[threads]


def beside_peer(name: str, engines_of: Engines, shape: str, dtype: str, extent: "Extent") -> dict[str, float | str]:
    """Figures of peer ``name`` on one shape and number format, ours and theirs in turns."""
    model, count = SHAPES[shape]
    part, turns = (extent.share, extent.turns) if name == "vllm" else (extent.slow_share, {1: 1})
    traffic = requests(count, share=part)

    def ours(threads: int) -> engines.Run:
        played = play(engines_of.of(threads), traffic, size=count)
        return engines.Run(played.output_tokens, played.cpu_s, played.wall_s)

    batch = engines.Batch(model, DTYPES[dtype], tuple(traffic), BUDGET, BLOCK_SIZE)
    return engines.beside(name, batch, f"{shape}_{dtype}", ours, turns)


def host_us_per_step(played: Played, batch: int) -> float:
    """Host time between two forwards, among steps in which ``batch`` requests decode and nothing else runs.

    The lower quartile: a busy machine adds to the rest what is not the host's work.
    """
    gaps = []
    previous: int | None = None
    for step in played.observer.steps:
        began, ended = next((start, end) for kind, _, start, end in step.lanes if kind == COMPUTE)
        if previous is not None and len(step.grants) == batch and all(grant[3] == 1 for grant in step.grants):
            gaps.append(began - previous)
        previous = ended
    if not gaps:
        raise RuntimeError(f"no step decoded {batch} requests")
    return sorted(gaps)[len(gaps) // 4] / NS_PER_US


def evidence_overhead(played: Played) -> float:
    """Share of the run's wall time spent in writing evidence and sampling."""
    span = played.observer.steps[-1].available_ns - played.observer.steps[0].planned_ns
    return played.observer.evidence_ns / span


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of a shape is measured: lengths times ``share``, pairs with vLLM by number of threads.

    Other peers, many times as slow, get lengths times ``slow_share``. Without ``fp32_peers`` peers stand beside in bf16
    alone.
    """

    share: float
    turns: dict[int, int]
    slow_share: float = 1.0
    fp32_peers: bool = True


def measure(extents: dict[str, Extent], only: frozenset[str]) -> dict[str, Any]:
    """The figures of shapes in both number formats, and of peers beside them, as far as ``only`` names them.

    Empty, it names all; else shapes, number formats (``S_bf16``) and peers, each kind all if none of it is named.
    """
    figures: dict[str, Any] = {"read_bandwidth_gb_per_s": round(limits.read_bandwidth() / 1e9, 1)}
    for name, dtype in DTYPES.items():
        figures[f"gemm_rate_gflop_per_s_{name}"] = round(limits.gemm_rate(dtype) / 1e9, 1)
    figures["requests_count"] = {name: SHAPES[name][1] for name in extents}
    figures["length_share"] = {name: round(extent.share, 3) for name, extent in extents.items()}
    figures["length_share_slow_peers"] = {name: round(extent.slow_share, 3) for name, extent in extents.items()}
    peers: dict[str, dict[str, float | str]] = {name: {} for name in _named(engines.ENGINES, only)}
    places = {f"{shape}_{dtype}": (shape, dtype) for shape in extents for dtype in DTYPES}
    wanted = [label for label in places if label in only or places[label][0] in only]
    for label in wanted or places:
        shape, dtype = places[label]
        extent = extents[shape]
        harness.say(f"{label} ...")
        figures |= _limits(shape, dtype, extent)
        loaded = Engines(shape, dtype)
        figures |= _alone(loaded.of(1), label, extent)
        if dtype == "fp32" and not extent.fp32_peers:
            continue
        for name, its in peers.items():
            if "missing" not in its:
                harness.say(f"{label} beside {name} ...")
                its |= beside_peer(name, loaded, shape, dtype, extent)
        figures |= _most_over_transformers(peers.get("transformers", {}), shape, dtype, extent)
    shares = [name for name in figures if name.startswith("share_of_limit_decode_")]
    figures["share_of_limit_decode"] = figures[shares[-1]]
    return {**figures, "peers": peers}


def _named(known: Iterable[str], only: frozenset[str]) -> list[str]:
    names = list(known)
    return [name for name in names if name in only] or names


def _limits(shape: str, dtype: str, extent: Extent) -> dict[str, Any]:
    """Figures against the physical limits, by engines of their own that are gone afterwards."""
    count = SHAPES[shape][1]
    traffic = requests(count, share=extent.share)
    settings = settings_of(shape, dtype)

    def serve(executor: TorchExecutor) -> object:
        return play(executor, traffic, size=count)

    step_ns = limits.decode_step_ns(timed(settings), count, serve)
    with watched(settings) as executor:
        return limits.of_engine(executor, f"{shape}_{dtype}", count, serve, step_ns)


def _most_over_transformers(its: dict[str, float | str], shape: str, dtype: str, extent: Extent) -> dict[str, float]:
    """What is physically possible over the speed in ``its``; nothing where there is none."""
    model, count = SHAPES[shape]
    speed = its.get(f"tokens_per_cpu_s_{shape}_{dtype}")
    if not isinstance(speed, float):
        return {}
    most = limits.most_over(model, DTYPES[dtype], requests(count, share=extent.slow_share), speed)
    return {f"most_over_transformers_{shape}_{dtype}": round(most, 1)}


def _alone(executor: TorchExecutor, label: str, extent: Extent) -> dict[str, Any]:
    """Figures of ours that need no peer."""
    count = SHAPES[label[0]][1]
    traffic = requests(count, share=extent.share)
    run = play(executor, traffic, size=count)
    figures: dict[str, Any] = {
        f"tokens_per_cpu_s_{label}": round(run.output_tokens / run.cpu_s, 1),
        f"wall_s_{label}": round(run.wall_s, 2),
    }
    if label == "S_fp32":
        with_evidence = play(executor, traffic, size=count, evidence=True)
        figures["host_us_per_step_64"] = round(host_us_per_step(with_evidence, count), 0)
        figures["host_us_per_step_64_without_evidence"] = round(host_us_per_step(run, count), 0)
        figures["evidence_overhead"] = round(evidence_overhead(with_evidence), 4)
        figures["attention"] = executor.attention
    return figures


def quick(only: frozenset[str] = frozenset()) -> harness.Figures:
    """Shape S alone, once, with lengths cut to a third (a sixth beside slow peers); peers in bf16 on one thread."""
    return measure({"S": Extent(1 / 3, {1: 1}, slow_share=1 / 6, fp32_peers=False)}, only)


def full(only: frozenset[str] = frozenset()) -> harness.Figures:
    """All shapes at their whole lengths, both formats, one thread and two: tens of minutes with all peers."""
    once = Extent(1.0, {1: 1, 2: 3})
    return measure({"S": Extent(1.0, {1: 2, 2: 3}), "M": once, "L": once}, only)


LABELS = tuple(f"{shape}_{dtype}" for shape in SHAPES for dtype in DTYPES)
PARTS = (*SHAPES, *LABELS, *engines.ENGINES)
COUNTS = frozenset(f"most_over_transformers_{label}" for label in LABELS)

if __name__ == "__main__":
    sys.exit(harness.main("engine", quick=quick, full=full, counts=COUNTS, parts=PARTS))
