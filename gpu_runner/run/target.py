"""From a job's target spec to an executor that is ready to serve."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scheduler_core.cluster.build import Site
from scheduler_core.drive.ports import ClusterExecutor, Executor
from scheduler_core.evidence.schema import NOISE
from scheduler_core.policies.presets import Capacity, dual_batch_of, overlap_of
from scheduler_core.sim.cost import StepCost
from scheduler_core.sim.executor import SimulatedExecutor, TrueOutputs
from scheduler_core.spec.job import RunJob
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.target import ModelledTarget, Profile, TorchTarget
from scheduler_core.spec.topology import Topology
from scheduler_core.types.errors import InputError, Problem
from scheduler_core.types.overlap import Overlap
from scheduler_core.types.patience import Promise
from scheduler_core.types.records import Loaded
from scheduler_core.types.shape import causal_pairs
from scheduler_core.types.time import Ns


@dataclass(frozen=True)
class ModelledCluster:
    """Several modelled instances: what they are, an executor for each, by index, and the devices of one by group."""

    site: Site
    executors: Sequence[ClusterExecutor]
    devices: Mapping[str, int]


@dataclass(frozen=True)
class Target:
    """A loaded target; with a ``cluster`` there, ``executor`` is that of its first instance.

    ``start`` sets the run clock to zero; ``loaded`` is the record of what happened before. ``level`` and ``source``
    are those of every figure measured on it. ``devices`` are those of ``executor``.
    """

    executor: Executor
    capacity: Capacity
    level: str
    source: str
    loaded: Loaded
    start: Callable[[], None]
    fingerprint: dict[str, Any] = field(default_factory=dict)
    cluster: ModelledCluster | None = None
    devices: int = 1


def open_target(job: RunJob, policy: PolicySpec, *, prefix_block_size: int) -> Target:
    """Load what ``job.target`` names; ``policy`` is resolved and says how large the KV pool and its blocks are.

    Raises:
        InputError: the model, device or profile cannot be had; the message says what would be right.
    """
    if job.target.torch is not None:
        target = _open_torch(job.target.torch, policy, prefix_block_size=prefix_block_size)
        return replace(target, capacity=replace(target.capacity, promises=_promises(job)))
    assert job.target.modelled is not None  # a target is one of the two
    return _open_modelled(job, job.target.modelled, policy)


def _pool_blocks(policy: PolicySpec, available: int) -> int:
    wanted = policy.cache.blocks
    if wanted is not None and wanted > available:
        message = f"the policy asks for {wanted} KV blocks, the target has {available}; raise target kv_blocks"
        raise InputError([Problem("cache.blocks", message)])
    return wanted or available


def _block_size(policy: PolicySpec) -> int:
    assert policy.cache.block_size is not None  # resolved policies are complete
    return policy.cache.block_size


def _open_torch(spec: TorchTarget, policy: PolicySpec, *, prefix_block_size: int) -> Target:
    from gpu_runner.engine.describe import describe
    from gpu_runner.engine.device import choose_device
    from gpu_runner.engine.executor import TorchExecutor
    from gpu_runner.engine.settings import EngineSettings, Sampling

    overlap = overlap_of(policy)
    if overlap is Overlap.PIPELINED:
        message = "pipelined needs a modelled target; kernels have two_stream and schedule_ahead"
        raise InputError([Problem("execution.overlap", message)])
    blocks = _pool_blocks(policy, spec.kv_blocks)
    settings = EngineSettings(
        model=spec.model,
        device=spec.device,
        dtype=spec.dtype,
        threads=spec.threads,
        kv_blocks=blocks,
        host_blocks=(policy.cache.host_blocks or 0) + (policy.cache.host_prefix_blocks or 0),
        block_size=_block_size(policy),
        prefix_block_size=prefix_block_size,
        weight_seed=spec.weight_seed,
        sampling=Sampling(**spec.sampling.model_dump()) if spec.sampling else Sampling(),
        overlap=overlap,
    )
    executor = TorchExecutor(settings)
    report = executor.load()
    return Target(
        executor=executor,
        capacity=Capacity(kv_blocks=blocks, model_length=describe(spec.model).model_length),
        level="gpu_kernels" if choose_device(spec.device).type == "cuda" else "cpu_kernels",
        source="kernel",
        loaded=Loaded(start_ns=-report.load_ns, end_ns=0, device_bytes=report.device_bytes),
        start=executor.start,
        fingerprint=report.fingerprint,
    )


def _capacity(job: RunJob, profile: Profile, blocks: int) -> Capacity:
    return Capacity(blocks, profile.model_length, profile, _promises(job))


def _promises(job: RunJob) -> dict[str, Promise]:
    return {name: tier.promise() for name, tier in job.tiers.items()}


def _open_modelled(job: RunJob, spec: ModelledTarget, policy: PolicySpec) -> Target:
    profile = job.profile
    if profile is None:
        message = "the job carries no calibrated profile; whoever makes the job resolves its name"
        raise InputError([Problem("target.modelled.profile", message)])
    topology = None if spec.topology is None else spec.topology.holding(policy.pools.hold)
    cluster = None if topology is None else _open_cluster(job, spec, topology, policy)
    blocks = _pool_blocks(policy, spec.kv_blocks or profile.kv_blocks)
    executor = SimulatedExecutor(
        profile=profile,
        noise_seed=job.noise_seed if spec.noise else None,
        overlap=overlap_of(policy),
        dual_batch=dual_batch_of(policy),
        block_size=_block_size(policy),
    )
    return Target(
        executor=executor if cluster is None else cluster.executors[0],
        capacity=_capacity(job, profile, blocks),
        level="simulation",
        source="modelled",
        loaded=Loaded(start_ns=0, end_ns=0),
        start=lambda: None,
        fingerprint={
            "profile": profile.name,
            "profile_digest": profile.digest(),
            NOISE: spec.noise and any(one.noisy for one in (profile, *job.group_profiles.values())),
            **profile.measured_on,
        },
        cluster=cluster,
        devices=profile.devices,
    )


def _open_cluster(job: RunJob, spec: ModelledTarget, topology: Topology, policy: PolicySpec) -> ModelledCluster:
    """Instances of each group on the group's profile; their noise is independent, what they know of answers shared."""
    assert job.profile is not None  # checked by the caller
    outputs = TrueOutputs()
    executors: list[ClusterExecutor] = []
    costs: list[StepCost] = []
    capacities: dict[str, Capacity] = {}
    devices: dict[str, int] = {}
    for name, group in topology.groups.items():
        profile = job.group_profiles.get(name, job.profile)
        blocks = _pool_blocks(policy, group.kv_blocks or spec.kv_blocks or profile.kv_blocks)
        capacities[name] = _capacity(job, profile, blocks)
        devices[name] = profile.devices
        for _ in range(group.count):
            seed = job.noise_seed + len(executors) if spec.noise else None
            executors.append(
                SimulatedExecutor(
                    profile=profile,
                    noise_seed=seed,
                    outputs=outputs,
                    dual_batch=dual_batch_of(policy),
                    block_size=_block_size(policy),
                )
            )
            costs.append(StepCost(profile, dual_batch=dual_batch_of(policy)))

    def prefill_ns(index: int, tokens: int) -> Ns:
        return costs[index].duration_ns(tokens, 0, 0, causal_pairs(0, tokens), 0)

    def decode_ns(index: int, requests: int, tokens: int) -> Ns:
        return costs[index].decode_ns(requests, tokens, 0)

    site = Site(topology, capacities, prefill_ns, job.noise_seed, decode_ns, job.events)
    return ModelledCluster(site, executors, devices)
