"""Scenes on real kernels: a small pool, requests played through the real driver, and figures of what was recorded."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gpu_runner.engine.executor import TorchExecutor
from scheduler_core.drive.driver import Driver, DriveReport
from scheduler_core.evidence.finalise import finalise, summarise
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.policies.presets import Capacity, build_instance
from scheduler_core.policies.registry import manifests
from scheduler_core.policies.resolving import resolve
from scheduler_core.testing.builders import ListSink, policy_spec
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.overlap import Overlap
from scheduler_core.types.plan import StepResult
from scheduler_core.types.records import Admitted, Finished, Preempted, Record, RunStarted, Step
from scheduler_core.types.time import NS_PER_MS, NS_PER_S, Ns
from tests.engine.conftest import settings_for
from tests.engine.playing import alone

SIZE = 16
HOST_BLOCKS = 64


class HeldStep(TorchExecutor):
    """One step, ``held``, does not come back before ``until_ns`` of the run's clock, however fast it was."""

    held: int = -1
    until_ns: Ns = 0

    def wait(self, until_ns: Ns | None) -> StepResult | None:
        if self._launched and self._launched[0].plan.id == self.held:
            end = self.until_ns if until_ns is None else min(until_ns, self.until_ns)
            time.sleep(max(0, end - self.now_ns()) / NS_PER_S)
            if until_ns is not None and until_ns < self.until_ns:
                return None
        return super().wait(until_ns)


@contextmanager
def engine(
    blocks: int, size: int = SIZE, *, hold: tuple[int, float] = (-1, 0), overlap: Overlap = Overlap.NONE
) -> Iterator[TorchExecutor]:
    """``tiny`` with a pool of ``blocks`` blocks of ``size``; ``hold`` is a step and the ms before which it never ends.

    When a scene is over nobody holds a block.
    """
    sizes = {"kv_blocks": blocks, "host_blocks": HOST_BLOCKS, "block_size": size, "prefix_block_size": size}
    made = HeldStep(settings_for("tiny", **sizes, overlap=overlap))
    made.held, made.until_ns = hold[0], round(hold[1] * NS_PER_MS)
    made.load()
    yield made
    assert made.tables() == {}, "every block is free again"


@dataclass(frozen=True)
class Served:
    """What became of a scene."""

    report: DriveReport
    records: list[Record]

    def of(self, *kinds: type[Record]) -> list[Any]:
        return [record for record in self.records if isinstance(record, kinds)]

    @property
    def ended(self) -> list[Finished]:
        """How requests ended, by request."""
        return sorted(self.of(Finished), key=lambda record: record.request)

    @property
    def steps(self) -> list[dict[int, int]]:
        """Tokens granted in each step, by request, in grant order."""
        return [{row[0]: row[3] for row in step.grants} for step in self.of(Step)]

    @property
    def admitted(self) -> list[int]:
        """Who was let in, in order, those who come back again included."""
        return [record.request for record in self.of(Admitted)]

    @property
    def preempted(self) -> list[int]:
        return [record.request for record in self.of(Preempted)]

    @cached_property
    def summary(self) -> RunSummary:
        return summarise(self.records, arm="a", repeat=0, tiers={})

    def finalise(self, folder: Path) -> RunSummary:
        return finalise(self.records, folder=folder, arm="a", repeat=0, tiers={})


def serve(executor: TorchExecutor, requests: list[PlannedRequest], **settings: Any) -> Served:
    """Play ``requests`` on a fresh run clock to the end; ``settings`` as of `policy_spec`, ``policy`` among them.

    Whatever the scene, it ends by itself with every request accounted for, passes the independent audit, and in every
    step each request that runs is granted once unless it is stalled for a stated reason.
    """
    size = executor.settings.block_size
    settings.setdefault("cache__block_size", size)
    policy = settings.pop("policy", "vllm_v1")
    if manifests()[policy].defaults.cache.host_blocks:
        settings.setdefault("cache__host_blocks", executor.settings.host_blocks)
    spec = resolve(policy_spec(policy, **settings))
    instance = build_instance(spec, Capacity(executor.settings.kv_blocks, executor.info.model_length))
    sink = ListSink()
    budget = spec.batch.token_budget or 0
    sink.write(
        RunStarted("r", 1, "", "", spec.canonical(), {}, "cpu_kernels", "kernel", len(requests),
                   executor.settings.kv_blocks, size, budget)
    )  # fmt: skip
    executor.start()
    report = Driver(
        instance=instance, requests=requests, executor=executor, sink=sink, stop=lambda: False, law_interval=20,
        prefix_block_size=size, depth=executor.settings.overlap.steps_in_flight,
    ).run()  # fmt: skip
    served = Served(report, sink.records)
    assert report.complete
    assert sum(report.outcomes.values()) == len(requests)
    assert instance.occupancy().kv_used == 0
    assert [item.message for item in served.summary.audit.violations] == []
    for step in served.of(Step):
        granted, stalled = [row[0] for row in step.grants], [row[0] for row in step.stalled]
        assert len({*granted, *stalled}) == len(granted) + len(stalled) == step.running
    return served


def has_its_own_tokens(executor: TorchExecutor, planned: PlannedRequest, tokens: list[int] | None) -> bool:
    """Whether ``tokens`` are those of ``planned`` served alone, or begin so, as far as no tie allows another."""
    size = executor.settings.block_size
    fits = -(-(planned.prompt_tokens + planned.output_tokens) // size) <= executor.settings.kv_blocks
    assert fits, "it needs a larger pool to be served alone"
    expected, found = alone(executor, planned), tokens or []
    end = min([*expected.ties, len(found)])
    return found[:end] == expected.tokens[:end]
