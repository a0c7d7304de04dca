"""Which loop plays a target: that of one instance, or that of a cluster."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gpu_runner.run.target import Target
from scheduler_core.cluster.build import build_cluster
from scheduler_core.cluster.cluster import Cluster
from scheduler_core.drive.cluster import ClusterDriver
from scheduler_core.drive.cuts import CacheResetAt
from scheduler_core.drive.driver import Driver, DriveReport
from scheduler_core.drive.fork import Switch
from scheduler_core.drive.ports import Sink, Stop
from scheduler_core.policies.presets import branch_of, build_instance, build_policy, overlap_of
from scheduler_core.sched.recorded import RecordedInstance
from scheduler_core.sim.executor import SimulatedExecutor
from scheduler_core.sim.recorded import RecordedDriver
from scheduler_core.spec.fork import ForkJob
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.foresight import Foresight
from scheduler_core.types.overlap import Overlap
from scheduler_core.types.patience import Patience
from scheduler_core.types.time import ns_from_s


class Plays(Protocol):
    """A loop that is ready to run."""

    def run(self) -> DriveReport:
        """Play to the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What any loop is given: requests and what surrounds them, where evidence goes, when to stop, whom to tell."""

    requests: Sequence[PlannedRequest]
    sink: Sink
    stop: Stop
    on_progress: Callable[[int, int], None]
    prefix_block_size: int
    patience: Mapping[str, Patience]
    foresight: Foresight | None
    resets: Sequence[CacheResetAt] = ()
    fork: ForkJob | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A loop, and the instances of a cluster as the evidence describes them (empty for one instance)."""

    loop: Plays
    instances: list[dict[str, Any]]


def prepare(policy: PolicySpec, target: Target, around: Surroundings) -> Prepared:
    """The loop for ``target``, its instances scheduled by the resolved ``policy``."""
    common = {name: getattr(around, name) for name in Surroundings.__dataclass_fields__ if name != "fork"}
    if target.cluster is None:
        return Prepared(_driver(policy, target, around.fork, common), [])
    cluster = build_cluster(policy, target.cluster.site)
    loop = ClusterDriver(cluster=cluster, executors=target.cluster.executors, **common)
    return Prepared(loop, _described(cluster, target.cluster.devices))


def _driver(policy: PolicySpec, target: Target, fork: ForkJob | None, common: dict[str, Any]) -> Driver:
    """One instance; after a fork's common beginning ``policy`` takes over."""
    overlap, executor = overlap_of(policy), target.executor
    plain = _is_plain(target, overlap, fork) and not policy.execution.draft_tokens
    if isinstance(executor, SimulatedExecutor) and plain:
        return RecordedDriver(
            instance=RecordedInstance(build_policy(policy, target.capacity)), executor=executor, **common
        )
    instance = build_instance(policy if fork is None else fork.policy, target.capacity)
    switch = None
    if fork is not None:
        branch = branch_of(instance.policy, fork.policy, policy, target.capacity)
        switch = Switch(ns_from_s(fork.at_s), lambda: instance.change_policy(branch))
    return Driver(instance=instance, executor=executor, depth=overlap.steps_in_flight, switch=switch, **common)


def _is_plain(target: Target, overlap: Overlap, fork: ForkJob | None) -> bool:
    """Whether steps follow one another on one device, under one policy, with no kernels to be set beside."""
    profile = target.capacity.profile
    alone = profile is None or profile.parallel is None
    return target.source == "modelled" and alone and overlap is Overlap.NONE and fork is None


def _described(cluster: Cluster, devices: Mapping[str, int]) -> list[dict[str, Any]]:
    return [
        {
            "name": member.name,
            "group": member.group,
            "kv_blocks": member.instance.policy.limits.kv_blocks,
            "devices": devices[member.group],
        }
        for member in cluster.members
    ]
