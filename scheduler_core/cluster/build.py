"""From a policy's section ``pools`` and a target's topology to a cluster."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scheduler_core.cluster.cluster import Cluster, Member
from scheduler_core.cluster.prefixes import PrefixIndex
from scheduler_core.cluster.router import (
    Estimate,
    FirstToken,
    LeastLoaded,
    PrefixAware,
    RoundRobin,
    Router,
    Sticky,
    TwoChoices,
)
from scheduler_core.policies.manifests import resolve
from scheduler_core.policies.presets import Capacity, build_instance
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.topology import Topology
from scheduler_core.types.time import ns_from_ms


@dataclass(frozen=True, slots=True)
class Site:
    """What a cluster is built on: its groups, what each group's instances offer, and how fast they prefill."""

    topology: Topology
    capacities: Mapping[str, Capacity]
    estimate: Estimate


def build_cluster(spec: PolicySpec, site: Site) -> Cluster:
    """Every instance scheduled by ``spec``, behind the router that its section ``pools`` names.

    Raises:
        InputError: the policy cannot be built for one of the groups.
    """
    full = resolve(spec)
    members = [
        Member(f"{group}-{number}", group, build_instance(full, site.capacities[group]))
        for group, described in site.topology.groups.items()
        for number in range(described.count)
    ]
    router = _ROUTERS[full.pools.route or "least_loaded"](full, members, site)
    return Cluster(members, router, look_every_ns=ns_from_ms(full.pools.look_every_ms or 0))


def _index(members: list[Member]) -> PrefixIndex:
    """A router's index that remembers as many blocks of each instance as the largest pool has."""
    return PrefixIndex(len(members), max(member.instance.policy.limits.kv_blocks for member in members))


_Maker = Callable[[PolicySpec, list[Member], Site], Router]

_ROUTERS: dict[str, _Maker] = {
    "round_robin": lambda spec, members, site: RoundRobin(),
    "least_loaded": lambda spec, members, site: LeastLoaded(),
    "two_choices": lambda spec, members, site: TwoChoices(),
    "sticky": lambda spec, members, site: Sticky(),
    "prefix": lambda spec, members, site: PrefixAware(_index(members)),
    "first_token": lambda spec, members, site: FirstToken(_index(members), site.estimate),
}
