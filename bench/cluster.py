"""Speed of simulated clusters: requests per CPU second of 8 instances, of separated pools, of a router that looks.

The workload of `bench.core`, 11 requests a second for each of 8 instances: dealt out in turn; sent where most of the
prompt is known and loads are balanced; and with 4 instances that compute prompts for 4 that decode, at 5.5 a second for
each of all (11 for each that decodes). A thousand instances get theirs in turn. One row is kept per request. Dynamo's
simulator runs beside it on the same requests where it is installed.
"""

import time
from collections.abc import Iterable
from typing import Any

from bench.core import CAPACITY, PROFILE, Rows, policy_spec
from scheduler_core.cluster.build import Site
from scheduler_core.sim.cost import StepCost
from scheduler_core.sim.fleet import Fleet
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
    spec = policy_spec(pools=POOLS[pools])
    return Fleet(spec, site, [cost] * topology.instances, lambda row, _: rows(row))


def requests_per_cpu_s(pools: str, groups: dict[str, int], requests: Iterable[PlannedRequest], count: int) -> int:
    """Simulated requests per CPU second."""
    played = fleet(pools, groups, Rows())
    began = time.process_time()
    played.run(iter(requests))
    return round(count / (time.process_time() - began))
