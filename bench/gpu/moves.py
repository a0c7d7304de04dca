"""Blocks that leave the device and come back, blocks that samples share and copy on write, and steps in flight: no
answer may change, and copies take time.
"""

from dataclasses import dataclass, field
from typing import Any

from gpu_runner.engine.executor import TorchExecutor
from gpu_runner.engine.settings import EngineSettings
from scheduler_core.drive.driver import Driver
from scheduler_core.policies.presets import Capacity, build_instance
from scheduler_core.policies.resolving import resolve
from scheduler_core.spec.policy import CacheSection, ExecutionSection, PolicySpec
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.intervals import IntervalClass
from scheduler_core.types.overlap import Overlap
from scheduler_core.types.plan import StepPlan
from scheduler_core.types.records import Finished, Record, Step, Tie
from scheduler_core.workload.samples import with_samples

MODEL, BLOCKS, HOST_BLOCKS, BLOCK_SIZE = "demo-s", 40, 80, 16
MODES = (Overlap.NONE, Overlap.TWO_STREAM, Overlap.SCHEDULE_AHEAD)


@dataclass
class Served:
    """A sink that keeps each request's tokens, the place of its first tie, and what copies took."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    ties: dict[int, int] = field(default_factory=dict)
    swap_ns: int = 0

    def write(self, record: Record) -> None:
        if isinstance(record, Finished):
            self.tokens[record.request] = record.tokens or []
        elif isinstance(record, Tie):
            self.ties[record.request] = min(record.position, self.ties.get(record.request, record.position))
        elif isinstance(record, Step):
            self.swap_ns += sum(end - start for kind, _, start, end in record.lanes if kind == IntervalClass.SWAP)

    def equal(self, other: "Served") -> int:
        """Requests with equal answers up to the first tie of either."""
        count = 0
        for request, tokens in self.tokens.items():
            ends = [side.ties.get(request, len(tokens)) for side in (self, other)]
            count += tokens[: min(ends)] == other.tokens.get(request, [])[: min(ends)]
        return count


class Counted(TorchExecutor):
    """The engine, counting the blocks that plans copy."""

    copied = on_write = 0

    def launch(self, plan: StepPlan) -> None:
        self.copied += len(plan.copies_out) + len(plan.copies_in)
        self.on_write += len(plan.copies_on_write)
        super().launch(plan)


def moves(device: str) -> dict[str, Any]:
    """Swapping on ``device`` in each mode against plain serving on the CPU, fp32, greedy."""
    apart, _ = _serve("cpu", Overlap.NONE, preemption="recompute", samples=3)
    shared, sharer = _serve(device, Overlap.NONE, preemption="swap", samples=3)
    expected, _ = _serve("cpu", Overlap.NONE, preemption="recompute")
    figures: dict[str, Any] = {
        "samples_same": apart.equal(shared) == len(apart.tokens),
        "samples_copied_on_write_blocks": sharer.on_write,
    }
    for mode in MODES:
        served, executor = _serve(device, mode, preemption="swap")
        figures[f"swap_{mode}_same"] = expected.equal(served) == len(expected.tokens)
        moved = executor.copied * executor.info.bytes_per_block(BLOCK_SIZE, "float32")
        figures[f"swap_{mode}_copied_blocks"] = executor.copied
        figures[f"swap_{mode}_gb_per_s"] = round(moved / served.swap_ns, 3) if served.swap_ns else None
    return figures


def _serve(device: str, mode: Overlap, *, preemption: str, samples: int = 1) -> tuple[Served, Counted]:
    """Twelve requests, or a third of them with three samples each, which share blocks where others are swapped."""
    policy = PolicySpec(
        policy="vllm_v1",
        cache=CacheSection.model_validate(
            {
                "block_size": BLOCK_SIZE,
                "preemption": preemption,
                "host_blocks": HOST_BLOCKS,
                "prefix": "none" if samples > 1 else "hash",
                "share_samples": samples > 1 and preemption == "swap",
            }
        ),
        execution=ExecutionSection.model_validate({"overlap": mode.value}),
    )
    executor = Counted(
        EngineSettings(MODEL, device, kv_blocks=BLOCKS, host_blocks=HOST_BLOCKS, block_size=BLOCK_SIZE, overlap=mode)
    )
    executor.load()
    sink = Served()
    prompts = [PlannedRequest(index, 0, 50 + 9 * index, 40, 40, seed=index) for index in range(12 // samples)]
    requests = with_samples(prompts, samples) if samples > 1 else prompts
    executor.start()
    Driver(
        instance=build_instance(resolve(policy), Capacity(BLOCKS, executor.info.model_length)),
        requests=requests,
        executor=executor,
        sink=sink,
        stop=lambda: False,
        depth=mode.steps_in_flight,
    ).run()
    return sink, executor
