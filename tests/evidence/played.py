"""Whole runs on the modelled target, from workload form to records."""

from pathlib import Path
from typing import Any

from scheduler_core.drive.driver import Driver
from scheduler_core.evidence.finalise import finalise
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.policies.presets import Capacity, build_instance
from scheduler_core.policies.resolving import resolve
from scheduler_core.sim.executor import SimulatedExecutor
from scheduler_core.spec.parse import parse
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.target import Affine, HostLink, Profile
from scheduler_core.spec.workload import WorkloadSpec
from scheduler_core.testing.builders import ListSink
from scheduler_core.types.records import Record, RunStarted
from scheduler_core.workload.freeze import freeze

WORKLOAD: dict[str, Any] = {
    "arrivals": {"poisson": {"rate_rps": 6}},
    "lengths": {
        "prompt": {"lognormal": {"mean": 200, "stdev": 200, "maximum": 1500}},
        "output": {"lognormal": {"mean": 40, "stdev": 30, "maximum": 200}},
    },
    "requests": 120,
    "seed": 7,
}
PROFILE = Profile(
    name="test", model="none", device="none", dtype="none",
    cost=Affine(base_ns=4e6, prefill_token_ns=2e5, decode_request_ns=5e5, context_token_ns=1e3),
    link=HostLink(token_bytes=1000, bytes_per_s=1e9, latency_ns=1e5),
    residual_share=0.05, drift_share=0.01, held_out_error_share=0, domain={}, steps_measured=0, measured_on={},
)  # fmt: skip


def play(
    policy: dict[str, Any], workload: dict[str, Any] | None = None, *, kv_blocks: int = 512, noise: int | None = None
) -> list[Record]:
    """Records of one run; ``noise`` is the seed of the noise stream, None for exact times."""
    plan = freeze(parse(WorkloadSpec, {**WORKLOAD, **(workload or {})}))
    spec = resolve(parse(PolicySpec, policy))
    sink = ListSink()
    sink.write(
        RunStarted(
            run="r", attempt=1, plan_digest=plan.digest, policy_digest=spec.digest(), policy=spec.canonical(),
            target={"modelled": {"noise": noise is not None}}, level="simulation", source="modelled",
            offered=len(plan.requests), kv_blocks=min(spec.cache.blocks or kv_blocks, kv_blocks),
            block_size=spec.cache.block_size or 1, token_budget=spec.batch.token_budget or 0,
        )
    )  # fmt: skip
    tiers = parse(WorkloadSpec, {**WORKLOAD, **(workload or {})}).tiers
    Driver(
        instance=build_instance(spec, Capacity(kv_blocks=kv_blocks, model_length=4096)),
        requests=plan.requests,
        executor=SimulatedExecutor(profile=PROFILE, noise_seed=noise),
        sink=sink,
        stop=lambda: False,
        prefix_block_size=plan.block_size,
        patience={name: limits for name, tier in tiers.items() if (limits := tier.patience())},
    ).run()
    return sink.records


def summarise(
    records: list[Record], folder: Path, *, arm: str = "a", repeat: int = 0, workload: dict[str, Any] | None = None
) -> RunSummary:
    """Finalise into ``folder`` by the workload's own tiers and warm-up."""
    spec = parse(WorkloadSpec, {**WORKLOAD, **(workload or {})})
    return finalise(records, folder=folder, arm=arm, repeat=repeat, tiers=spec.tiers, warmup_share=spec.warmup_share)
