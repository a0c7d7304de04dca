"""From a policy's section ``pools`` and a target's topology to a cluster."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scheduler_core.cluster.cluster import Cluster, Member
from scheduler_core.cluster.handoff import Action, Faults, Handoffs, Rules, Ways
from scheduler_core.cluster.links import Links
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
from scheduler_core.cluster.scaling import ScaleRules
from scheduler_core.policies.presets import Capacity, build_instance
from scheduler_core.policies.resolving import resolve
from scheduler_core.spec.policy import PolicySpec, PoolsSection
from scheduler_core.spec.topology import Topology
from scheduler_core.types.time import NS_PER_US, ns_from_ms, ns_from_s


@dataclass(frozen=True, slots=True)
class Site:
    """What a cluster is built on: its groups, what each group's instances offer, and how fast they prefill.

    ``fault_seed`` draws which transfers break off or come late.
    """

    topology: Topology
    capacities: Mapping[str, Capacity]
    estimate: Estimate
    fault_seed: int = 0


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
    look_every_ns = ns_from_ms(full.pools.look_every_ms or 0)
    if full.pools.layout != "split":
        return Cluster(members, router, scaling=_scaling(full.pools, site), look_every_ns=look_every_ns)
    prefill = frozenset(full.pools.prefill or ())
    entries = [index for index, member in enumerate(members) if member.group in prefill]
    handoffs = _handoffs(full.pools, members, site)
    return Cluster(members, router, entries=entries, handoffs=handoffs, look_every_ns=look_every_ns)


def _scaling(pools: PoolsSection, site: Site) -> ScaleRules | None:
    rules = pools.scale
    if rules is None:
        return None
    return ScaleRules(
        by_busy=rules.by == "busy",
        least=rules.least,
        up_at=rules.up_at,
        down_at=rules.down_at,
        window_ns=ns_from_s(rules.window_s),
        every_ns=ns_from_s(rules.every_s),
        cooldown_ns=ns_from_s(rules.cooldown_s),
        start_ns=ns_from_s(site.topology.cold_start.total_s),
    )


def _handoffs(pools: PoolsSection, members: list[Member], site: Site) -> Handoffs:
    topology = site.topology
    ways = Ways(
        instances=[member.instance for member in members],
        loads=[member.load for member in members],
        decoders=[index for index, member in enumerate(members) if member.group not in (pools.prefill or ())],
        links=Links(
            bytes_per_s=round(topology.link_gb_per_s * 1e9),
            latency_ns=round(topology.link_latency_us * NS_PER_US),
            shared=topology.link_shared,
        ),
        estimate=site.estimate,
    )
    rules = Rules(
        prefer=pools.handoff or "transfer",
        budget_ns=None if pools.handoff_budget_ms is None else ns_from_ms(pools.handoff_budget_ms),
        patience_ns=None if pools.patience_ms is None else ns_from_ms(pools.patience_ms),
        broken=Action(pools.broken or "recompute"),
        reserve_at_arrival=pools.reserve == "arrival",
        by_chunk=pools.move == "chunks",
        kv_bytes_per_token=topology.kv_bytes_per_token,
    )
    late_ns = ns_from_ms(topology.late_ms)
    return Handoffs(ways, rules, Faults(topology.broken_share, topology.late_share, late_ns, site.fault_seed))


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
