"""From a policy's section ``pools`` and a target's topology to a cluster."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from scheduler_core.cluster.borrowing import Borrowing
from scheduler_core.cluster.cluster import Cluster
from scheduler_core.cluster.disposition import Ways
from scheduler_core.cluster.doors import Doors
from scheduler_core.cluster.fetching import Fetches
from scheduler_core.cluster.handoff import Handoffs
from scheduler_core.cluster.isolation import Isolation, TierGround
from scheduler_core.cluster.leases import Leases
from scheduler_core.cluster.links import Link, Links
from scheduler_core.cluster.load import Load
from scheduler_core.cluster.members import Means, Member
from scheduler_core.cluster.migration import Ground, MigrationRules, Migrations, Pick
from scheduler_core.cluster.outages import Outage, Outages
from scheduler_core.cluster.pools import Pool, Pools
from scheduler_core.cluster.prefixes import PrefixIndex
from scheduler_core.cluster.rebalancing import Balance, Rebalancer, RebalanceRules
from scheduler_core.cluster.refusal import Pace, Refusal
from scheduler_core.cluster.relief import Relief, ReliefRules
from scheduler_core.cluster.router import (
    Estimate,
    FewestTokens,
    FirstToken,
    Freest,
    KvCost,
    LeastLoaded,
    Lending,
    PrefixAware,
    RoundRobin,
    Router,
    Sticky,
    TwoChoices,
)
from scheduler_core.cluster.rules import Action, Emitter, Faults, Move, Reserve, Rules
from scheduler_core.cluster.scaling import Power, Pressure, Scaler, ScaleRules, Stage, Yard
from scheduler_core.policies.presets import Capacity, build_instance
from scheduler_core.policies.resolving import resolve
from scheduler_core.sched.instance import Instance
from scheduler_core.spec.events import EventsSpec
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.pools import PoolsSection, Scaling
from scheduler_core.spec.topology import Topology
from scheduler_core.types.time import NS_PER_US, ns_from_ms, ns_from_s


@dataclass(frozen=True, slots=True)
class Site:
    """What a cluster is built on: its groups, what each group's instances offer, how fast they prefill and decode.

    ``fault_seed`` draws which transfers break off or come late. Without a ``pace`` nothing is decided by it. In its
    ``events`` instances die or are drained.
    """

    topology: Topology
    capacities: Mapping[str, Capacity]
    estimate: Estimate
    fault_seed: int = 0
    pace: Pace | None = None
    events: EventsSpec | None = None


Seats = Callable[[PolicySpec, Capacity], tuple[Instance, Load]]
"""Makes an instance of a cluster, and what is to be counted of it."""


def _seat(spec: PolicySpec, capacity: Capacity) -> tuple[Instance, Load]:
    return build_instance(spec, capacity), Load()


def build_cluster(spec: PolicySpec, site: Site, seats: Seats = _seat) -> Cluster:
    """Every instance scheduled by ``spec``, behind the router that its section ``pools`` names.

    Raises:
        InputError: the policy cannot be built for one of the groups.
    """
    full = resolve(spec)
    members = [
        Member(f"{group}-{number}", group, *seats(full, site.capacities[group]))
        for group, described in site.topology.groups.items()
        for number in range(described.count)
    ]
    router = _ROUTERS[full.pools.route or "least_loaded"](full, members, site)
    look_every_ns = ns_from_ms(full.pools.look_every_ms or 0)
    links = Links(
        bytes_per_s=round(site.topology.link_gb_per_s * 1e9),
        latency_ns=round(site.topology.link_latency_us * NS_PER_US),
        shared=site.topology.link_shared,
    )
    pools, isolation = _pools(full.pools, members), _isolation(full.pools, members)
    entries, decoders = pools.of(Pool.PREFILL), pools.of(Pool.DECODE, Pool.MIXED)
    ways = Ways(*_ground(members, links), decoders, site.estimate, isolation)
    handoffs = _handoffs(full.pools, ways, site) if entries else None
    everybody = frozenset(range(len(members)))
    grounds = [everybody] if isolation is None else isolation.grounds()
    means = Means(
        links=links,
        handoffs=handoffs,
        borrowing=_borrowing(full.pools, pools, router, members),
        migrations=_migrations(full.pools, Ground(*_ground(members, links), grounds), site),
        refusal=_refusal(full.pools, site),
        isolation=isolation,
        relief=_relief(full.pools, members, links, site),
        fetches=_fetches(router, members, links, site),
        takes_over=full.pools.on_death != "fail",
    )
    floor = Floor(members, grounds, pools, site, handoffs)
    doors = Doors(pools, _scalers(full.pools, floor), _rebalancers(full.pools, floor), _outages(full.pools, site))
    return Cluster(members, router, doors=doors, means=means, look_every_ns=look_every_ns)


def _pools(pools: PoolsSection, members: Sequence[Member]) -> Pools:
    if pools.layout != "split":
        return Pools([Pool.MIXED] * len(members))
    return Pools([Pool.PREFILL if member.group in (pools.prefill or ()) else Pool.DECODE for member in members])


def _borrowing(section: PoolsSection, pools: Pools, router: Router, members: list[Member]) -> Borrowing | None:
    if section.layout != "split" or section.borrow_tokens is None:
        return None
    return Borrowing(pools, router, [_kv_tokens(member) for member in members], section.borrow_tokens)


def _ground(members: list[Member], links: Links) -> tuple[list[Instance], list[Load], Links]:
    return [member.instance for member in members], [member.load for member in members], links


def _migrations(pools: PoolsSection, ground: Ground, site: Site) -> Migrations | None:
    asked = pools.migrate
    if asked is None:
        return None
    rules = MigrationRules(
        every_ns=ns_from_ms(asked.every_ms),
        above=asked.above,
        pick=Pick(asked.pick),
        last_blocks=asked.last_blocks,
        most_stages=asked.most_stages,
        kv_bytes_per_token=site.topology.kv_bytes_per_token,
        headroom=pools.urgent_headroom_tokens or 0,
    )
    return Migrations(ground, rules, _faults(site))


def _outages(pools: PoolsSection, site: Site) -> Outages | None:
    asked = () if site.events is None else site.events.outages
    if not asked:
        return None
    first, seen = {}, 0
    for group, described in site.topology.groups.items():
        first[group], seen = seen, seen + described.count
    cold_s = site.topology.cold_start.total_s
    outages = [
        Outage(
            first[item.group] + item.number,
            ns_from_s(item.at_s),
            drains=item.kind == "drain",
            back_ns=None if item.back_after_s is None else ns_from_s(item.at_s + item.back_after_s + cold_s),
        )
        for item in asked
    ]
    return Outages(outages, ns_from_ms(1000 if pools.notice_ms is None else pools.notice_ms))


def _refusal(pools: PoolsSection, site: Site) -> Refusal | None:
    if pools.refuse != "promise":
        return None
    promises = next(iter(site.capacities.values())).promises
    return Refusal(promises, site.estimate, site.pace)


def _isolation(section: PoolsSection, members: Sequence[Member]) -> Isolation | None:
    if section.tiers is None:
        return None

    def those(groups: Collection[str]) -> frozenset[int]:
        return frozenset(index for index, member in enumerate(members) if member.group in groups)

    tiers = {
        name: TierGround(those(tier.groups), those(tier.overflow or ()), tier.overflow_at if tier.overflow else 0.0)
        for name, tier in section.tiers.items()
    }
    named = {group for tier in section.tiers.values() for group in tier.groups}
    return Isolation(tiers, those({member.group for member in members} - named))


def _relief(section: PoolsSection, members: Sequence[Member], links: Links, site: Site) -> Relief | None:
    asked = section.transfer
    if asked is None:
        return None
    rules = ReliefRules(ns_from_ms(asked.wait_ms), ns_from_s(asked.window_s), ns_from_s(asked.every_s))
    return Relief([member.instance for member in members], links, site.estimate, rules)


def _fetches(router: Router, members: Sequence[Member], links: Links, site: Site) -> Fetches | None:
    if not isinstance(router, FirstToken) or router.lending is None:
        return None
    instances = [member.instance for member in members]
    return Fetches(instances, links, router.index, router.lending, site.topology.kv_bytes_per_token)


def _lending(pools: PoolsSection, topology: Topology) -> Lending | None:
    if pools.prefix_fetch_ratio is None:
        return None
    idle = Link(round(topology.link_gb_per_s * 1e9), round(topology.link_latency_us * NS_PER_US))
    return Lending(pools.prefix_fetch_ratio, lambda tokens: idle.alone_ns(tokens * topology.kv_bytes_per_token))


@dataclass(frozen=True, slots=True)
class Floor:
    """What pools grow, shrink and change on; each of ``grounds`` by itself, as no tier takes another's instances."""

    members: Sequence[Member]
    grounds: Sequence[frozenset[int]]
    pools: Pools
    site: Site
    handoffs: Handoffs | None

    def idle(self, member: int) -> bool:
        """Whether nobody is at an instance, nor has a place there."""
        return not self.members[member].instance.open_requests()

    def homeless(self, ground: frozenset[int]) -> tuple[int, int]:
        """Requests to be decoded in ``ground`` that have no place there, and their KV tokens."""
        return (0, 0) if self.handoffs is None else self.handoffs.homeless(ground)


def _scalers(section: PoolsSection, floor: Floor) -> list[Scaler]:
    asked = {Pool.MIXED: section.scale, Pool.PREFILL: section.scale_prefill, Pool.DECODE: section.scale_decode}
    loads = [member.load for member in floor.members]
    power = dict.fromkeys(range(len(loads)), Power.ON)  # also of those that come from a pool which does not scale
    scalers: list[Scaler] = []
    for (pool, rules), ground in product(asked.items(), floor.grounds):
        members = partial(floor.pools.at_home, pool, ground)
        if rules is None or not members():
            continue
        outside = partial(_waiting, floor, ground) if pool is Pool.DECODE else _nobody
        yard = Yard(members, power, loads, floor.idle, floor.site.estimate, outside)
        scalers.append(Scaler(yard, _scale_rules(rules, floor.site)))
    return scalers


def _waiting(floor: Floor, ground: frozenset[int]) -> int:
    return floor.homeless(ground)[0]


def _nobody() -> int:
    return 0


def _rebalancers(section: PoolsSection, floor: Floor) -> list[Rebalancer]:
    asked = section.rebalance
    if asked is None or floor.handoffs is None:
        return []
    rules = RebalanceRules(
        prefill_wait_ns=ns_from_ms(asked.prefill_wait_ms),
        decode_kv_share=asked.decode_kv_share,
        window_ns=ns_from_s(asked.window_s),
        every_ns=ns_from_s(asked.every_s),
        cooldown_ns=ns_from_s(asked.cooldown_s),
    )
    return [Rebalancer(floor.pools, _balance(section, floor, ground), rules) for ground in floor.grounds]


def _balance(section: PoolsSection, floor: Floor, ground: frozenset[int]) -> Balance:
    scaled = {Pool.PREFILL: section.scale_prefill, Pool.DECODE: section.scale_decode}
    return Balance(
        members=ground,
        loads=[member.load for member in floor.members],
        capacity=[_kv_tokens(member) for member in floor.members],
        estimate=floor.site.estimate,
        idle=floor.idle,
        outside=lambda: floor.homeless(ground)[1],
        least={pool: 1 if rules is None else rules.least for pool, rules in scaled.items()},
    )


def _scale_rules(rules: Scaling, site: Site) -> ScaleRules:
    return ScaleRules(
        by=Pressure(rules.by),
        least=rules.least,
        up_at=rules.up_at,
        down_at=rules.down_at,
        window_ns=ns_from_s(rules.window_s),
        every_ns=ns_from_s(rules.every_s),
        cooldown_ns=ns_from_s(rules.cooldown_s),
        stages=tuple(Stage(name, ns_from_s(s)) for name, s in site.topology.cold_start.stages_s.items() if s),
    )


def _handoffs(pools: PoolsSection, ways: Ways, site: Site) -> Handoffs:
    rules = Rules(
        prefer=pools.handoff or "transfer",
        budget_ns=None if pools.handoff_budget_ms is None else ns_from_ms(pools.handoff_budget_ms),
        patience_ns=None if pools.patience_ms is None else ns_from_ms(pools.patience_ms),
        broken=Action(pools.broken or "recompute"),
        reserve=Reserve(pools.reserve or "ready"),
        move=Move(pools.move or "after"),
        kv_bytes_per_token=site.topology.kv_bytes_per_token,
        kv_layers=site.topology.kv_layers,
        first_token=Emitter(pools.first_token or "prefill"),
        accept_share=1.0 if pools.accept_share is None else pools.accept_share,
        headroom_tokens=pools.headroom_tokens or 0,
        stream_tokens=pools.stream_tokens or 0,
        retracted_first=pools.retracted_first is True,
    )
    leases = None if pools.lease_ms is None else Leases(ways.instances, ways.links, ns_from_ms(pools.lease_ms))
    return Handoffs(ways, rules, _faults(site), leases)


def _faults(site: Site) -> Faults:
    topology = site.topology
    return Faults(topology.broken_share, topology.late_share, ns_from_ms(topology.late_ms), site.fault_seed)


def _index(members: list[Member]) -> PrefixIndex:
    """A router's index that remembers as many blocks of each instance as the largest pool has."""
    return PrefixIndex(len(members), max(member.instance.policy.limits.kv_blocks for member in members))


def _kv_tokens(member: Member) -> int:
    limits = member.instance.policy.limits
    return limits.kv_blocks * limits.block_size


def _prefix_weight(pools: PoolsSection) -> float:
    return 1.0 if pools.prefix_weight is None else pools.prefix_weight


_Maker = Callable[[PolicySpec, list[Member], Site], Router]

_ROUTERS: dict[str, _Maker] = {
    "round_robin": lambda spec, members, site: RoundRobin(),
    "least_loaded": lambda spec, members, site: LeastLoaded(),
    "two_choices": lambda spec, members, site: TwoChoices(),
    "sticky": lambda spec, members, site: Sticky(),
    "prefix": lambda spec, members, site: PrefixAware(_index(members)),
    "first_token": lambda spec, members, site: FirstToken(
        _index(members), site.estimate, _lending(spec.pools, site.topology)
    ),
    "fewest_tokens": lambda spec, members, site: FewestTokens(),
    "freest": lambda spec, members, site: Freest(
        [_kv_tokens(member) for member in members], spec.pools.urgent_headroom_tokens or 0
    ),
    "kv_cost": lambda spec, members, site: KvCost(_index(members), _prefix_weight(spec.pools)),
}
