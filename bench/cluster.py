"""Speed of simulated clusters: requests per CPU second of 8 instances, of separated pools, of a router that looks.

The workload of `bench.core`, 11 requests a second for each of 8 instances: dealt out in turn; sent where most of the
prompt is known and loads are balanced; and with 4 instances that compute prompts for 4 that decode, at 5.5 a second for
each of all (11 for each that decodes). A thousand instances get theirs in turn. One row is kept per request. Dynamo's
simulator runs beside it on the same requests where it is installed.
"""

import sys
import time
from collections.abc import Sequence
from typing import Any

from bench import harness
from bench.core import CAPACITY, PROFILE, RATE_RPS, Rows, policy_spec, python_loop_ns, run_python, workload
from bench.peers import simulators
from bench.peers.simulators import Load
from scheduler_core.cluster.build import Site
from scheduler_core.sim.cost import StepCost
from scheduler_core.sim.fleet import Fleet
from scheduler_core.spec.pools import PoolsSection
from scheduler_core.spec.topology import InstanceGroup, Topology
from scheduler_core.types.arrival import PlannedRequest

REPLICAS = 8
POOLS: dict[str, dict[str, Any]] = {
    "round_robin": {"layout": "replicas", "route": "round_robin"},
    "prefix": {"layout": "replicas", "route": "prefix"},
    "pd": {"layout": "split", "prefill": ("a",), "route": "round_robin"},
}


def fleet(pools: str, groups: dict[str, int], rows: Rows) -> Fleet:
    """A simulated cluster of ``groups``, used as ``pools`` says."""
    topology = Topology(groups={name: InstanceGroup(count=count) for name, count in groups.items()})
    cost = StepCost(PROFILE)
    site = Site(topology, dict.fromkeys(groups, CAPACITY), lambda _, tokens: cost.duration_ns(tokens, 0, 0, 0, 0))
    spec = policy_spec().model_copy(update={"pools": PoolsSection.model_validate(POOLS[pools])})
    return Fleet(spec, site, [cost] * topology.instances, lambda row, _: rows(row))


def requests_per_cpu_s(pools: str, groups: dict[str, int], requests: Sequence[PlannedRequest]) -> int:
    """Simulated requests per CPU second, arrivals made beforehand."""
    played = fleet(pools, groups, Rows())
    began = time.process_time()
    played.run(iter(requests))
    return round(len(requests) / (time.process_time() - began))


def simulate_streamed(count: int, instances: int) -> None:
    """Simulate ``count`` requests made one by one, dealt out to ``instances``."""
    fleet("round_robin", {"a": instances}, Rows()).run(workload(count, RATE_RPS * instances))


def large(count: int, instances: int) -> tuple[float, float]:
    """CPU seconds and peak MiB of a fresh process that makes and simulates ``count`` requests on ``instances``."""
    code = (
        "import time; from bench import cluster, core; "
        f"cluster.simulate_streamed({count}, {instances}); print(time.process_time(), core.own_peak_mib())"
    )
    cpu_s, peak_mib = map(float, run_python(code).split())
    return round(cpu_s, 1), round(peak_mib, 1)


def measure(count: int) -> dict[str, Any]:
    """Speeds on ``count`` requests, ours and Dynamo's."""
    both, half = (tuple(workload(count, rate * REPLICAS)) for rate in (RATE_RPS, RATE_RPS / 2))
    label = f"{count // 1000}k"
    loads = {
        f"requests_per_cpu_s_{label}_8replicas": ("round_robin", Load(both, replicas=REPLICAS)),
        "requests_per_cpu_s_pd_4_4": ("pd", Load(half, replicas=REPLICAS // 2, decoders=REPLICAS // 2)),
        "requests_per_cpu_s_prefix_router": ("prefix", Load(both, replicas=REPLICAS, router="kv_router")),
    }
    ours: dict[str, Any] = {}
    for figure, (pools, load) in loads.items():
        groups, requests = ({"a": 4, "b": 4}, half) if load.decoders else ({"a": REPLICAS}, both)
        ours[figure] = requests_per_cpu_s(pools, groups, requests)
        harness.say(f"{figure}: {ours[figure]}")
    peers = simulators.beside(ours, {figure: load for figure, (_, load) in loads.items()}, names=("dynamo",))
    return {**ours, "requests_count": count, "peers": peers}


def quick() -> harness.Figures:
    """Speeds on 3,000 requests, and 10,000 requests on a thousand instances."""
    cpu_s, peak_mib = large(10_000, 1_000)
    return {
        "python_loop_ns": python_loop_ns(),
        **measure(3_000),
        "cpu_s_10k_requests_1000_instances": cpu_s,
        "peak_mib_10k_requests_1000_instances": peak_mib,
    }


def full() -> harness.Figures:
    """The figures on 100,000 requests, and a million on 1,000 instances."""
    cpu_s, peak_mib = large(1_000_000, 1_000)
    return {
        "python_loop_ns": python_loop_ns(),
        **measure(100_000),
        "cpu_s_1m_requests_1000_instances": cpu_s,
        "peak_mib_1m_requests_1000_instances": peak_mib,
    }


if __name__ == "__main__":
    harness.compile_core("cluster")
    sys.exit(harness.main("cluster", quick=quick, full=full))
