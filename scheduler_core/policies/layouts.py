"""Whether what a policy wants of several instances goes together, and suits those that there are."""

from collections.abc import Collection, Iterator

from scheduler_core.spec.pools import PoolsSection
from scheduler_core.spec.topology import Topology
from scheduler_core.types.errors import Problem

_REPLICAS_ONLY = {"scale": "scales replicas"}
_SPLIT_ONLY = {
    "scale_prefill": "scales the prefill pool",
    "scale_decode": "scales the decode pool",
    "rebalance": "moves instances between prefill and decode",
    "borrow_tokens": "lends instances between prefill and decode",
}


def layout_problems(pools: PoolsSection, topology: Topology) -> Iterator[Problem]:
    """What of a resolved section ``pools`` does not suit several instances that are ``topology``."""
    for layout, settings in (("replicas", _REPLICAS_ONLY), ("split", _SPLIT_ONLY)):
        for name, does in settings.items():
            if getattr(pools, name) is not None and pools.layout != layout:
                yield Problem(f"pools.{name}", f"{does}, but the layout is {pools.layout}")
    yield from _fetch_problems(pools)
    if pools.layout == "split":
        yield from _split_problems(pools, topology)
    yield from _scale_problems(pools, topology)
    yield from _tier_problems(pools, topology)


def _fetch_problems(pools: PoolsSection) -> Iterator[Problem]:
    if pools.prefix_fetch_ratio is None:
        return
    if pools.route != "first_token":
        yield Problem("pools.prefix_fetch_ratio", f"only route first_token weighs what is fetched; it is {pools.route}")
    if pools.reserve == "before":
        message = "cannot be used beside reserve: before, as both hold a prompt back, for different things"
        yield Problem("pools.prefix_fetch_ratio", message)


def homeless_tiers(pools: PoolsSection, topology: Topology, tiers: Collection[str], where: str) -> Iterator[Problem]:
    """Tiers of a workload for which the tiers of ``pools`` leave no instance."""
    if pools.tiers is None:
        return
    left = set(topology.groups) - {group for tier in pools.tiers.values() for group in tier.groups}
    if _both_phases(left, pools.prefill or ()) if pools.layout == "split" else left:
        return
    for name in tiers:
        if name not in pools.tiers:
            message = f"leave no instance for tier {name!r}: give it groups of its own, or fewer to the others"
            yield Problem(f"{where}.pools.tiers", message)


def _split_problems(pools: PoolsSection, topology: Topology) -> Iterator[Problem]:
    groups, prefill = ", ".join(topology.groups), pools.prefill or ()
    for name in prefill:
        if name not in topology.groups:
            yield Problem("pools.prefill", f"there is no group {name!r}; the target has {groups}")
    if not prefill or set(prefill) >= set(topology.groups):
        message = f"name the groups that compute prompts and leave at least one to decode; the target has {groups}"
        yield Problem("pools.prefill", message)
    if pools.move in ("chunks", "layers") and pools.reserve == "ready":
        yield Problem("pools.move", f"{pools.move} have somewhere to go only with reserve: before or arrival")


def _scale_problems(pools: PoolsSection, topology: Topology) -> Iterator[Problem]:
    whose = {"scale": "target", "scale_prefill": "prefill pool", "scale_decode": "decode pool"}
    for name, pool in whose.items():
        rules = getattr(pools, name)
        if rules is None:
            continue
        for ground, groups in _grounds(pools, topology).items():
            count = sum(topology.groups[group].count for group in _scaled_by(name, groups, pools.prefill or ()))
            if count and rules.least > count:
                has = f"the {pool} has {count} instances" + (f" for {ground}" if ground else "")
                yield Problem(f"pools.{name}.least", f"is {rules.least}, but {has}")
    if pools.scale_decode is not None and pools.scale_decode.by == "wait":
        yield Problem("pools.scale_decode.by", "wait looks at prompts, which decode instances have none of; use queue")


def _scaled_by(name: str, groups: Collection[str], prefill: Collection[str]) -> list[str]:
    """Those of ``groups`` that the setting ``name`` scales."""
    return [group for group in groups if name == "scale" or (group in prefill) == (name == "scale_prefill")]


def _grounds(pools: PoolsSection, topology: Topology) -> dict[str, Collection[str]]:
    """Groups of the target that scale by themselves, by whose they are: each tier's own, and the rest."""
    if pools.tiers is None:
        return {"": tuple(topology.groups)}
    grounds: dict[str, Collection[str]] = {
        f"tier {tier!r}": [group for group in pool.groups if group in topology.groups]
        for tier, pool in pools.tiers.items()
    }
    named = {group for pool in pools.tiers.values() for group in pool.groups}
    return {**grounds, "other tiers": [group for group in topology.groups if group not in named]}


def _tier_problems(pools: PoolsSection, topology: Topology) -> Iterator[Problem]:
    taken: dict[str, str] = {}
    for tier, pool in (pools.tiers or {}).items():
        for field, groups in (("groups", pool.groups), ("overflow", pool.overflow or ())):
            for group in groups:
                if group not in topology.groups:
                    known = ", ".join(topology.groups)
                    yield Problem(f"pools.tiers.{tier}.{field}", f"there is no group {group!r}; the target has {known}")
        for group in pool.groups:
            if taken.setdefault(group, tier) != tier:
                yield Problem(f"pools.tiers.{tier}.groups", f"{group} is another tier's own already: {taken[group]!r}")
        if pools.layout == "split" and not _both_phases(pool.groups, pools.prefill or ()):
            yield Problem(f"pools.tiers.{tier}.groups", "name at least one group that prefills and one that decodes")


def _both_phases(groups: Collection[str], prefill: Collection[str]) -> bool:
    """Whether ``groups`` can compute a prompt, and decode."""
    return any(group in prefill for group in groups) and any(group not in prefill for group in groups)
