"""From the cache section of a policy to the rules of the pool; the same for every preset."""

from dataclasses import replace

from scheduler_core.kv.rules import CacheRules, Quotas
from scheduler_core.policies.parts import ByArrival, FirstChunk, PromptAndPrediction
from scheduler_core.policies.predicting import predictor_of
from scheduler_core.policies.preemption import CheaperWay, KeepBlocks, SwapOut
from scheduler_core.policies.prefix_order import DepthFirstByWeight, LongestPrefixFirst
from scheduler_core.sched.decisions import Publish
from scheduler_core.sched.policy import PolicySet, Preemption
from scheduler_core.spec.policy import PREFIX_ORDERS, CacheSection, PolicySpec
from scheduler_core.spec.target import Profile
from scheduler_core.types.errors import InputError, Problem


def with_memory_rule(policy: PolicySet, spec: PolicySpec) -> PolicySet:
    """``policy`` with the rule that says how much memory must be in sight to admit.

    Whole prompt and output limit are each preset's own parts; the first chunk and a prediction are the same for all.
    """
    if spec.cache.admit == "first_chunk":
        return replace(policy, reserve=FirstChunk())
    if spec.cache.admit == "predicted":
        return replace(policy, reserve=PromptAndPrediction(predictor_of(policy)))
    return policy


def with_pool(policy: PolicySet, spec: PolicySpec, profile: Profile | None) -> PolicySet:
    """``policy`` with what the resolved ``spec`` says about its cache, on a target that steps as ``profile`` says.

    A radix tree takes no duplicates, and a block table cannot be exchanged under a step that still writes: it is filled
    when steps come back, whatever the preset does with block hashes (G-25).
    """
    cache = spec.cache
    for setting in ("host_blocks", "host_prefix_blocks"):
        if getattr(cache, setting) and profile is not None and profile.link is None:
            message = f"profile {profile.name!r} does not say what copies to the host take; use another, or 0 here"
            raise InputError([Problem(f"cache.{setting}", message)])
    index = cache.prefix or "none"
    return replace(
        policy,
        prefix_cache=index != "none",
        publish=Publish.AT_CHUNK if index == "radix" else policy.publish,
        cache=CacheRules(
            index=index,
            eviction=cache.eviction or "lru",
            host_blocks=cache.host_blocks or 0,
            host_prefix_blocks=cache.host_prefix_blocks or 0,
            clean_low=int((cache.clean_low or 0) * policy.limits.kv_blocks),
            clean_high=int((cache.clean_high or cache.clean_low or 0) * policy.limits.kv_blocks),
        ),
        swapping=policy.swapping and replace(policy.swapping, host_low=_host_low(cache)),
        preemption=_preemption(spec, policy.limits.block_size, profile),
        quotas=_quotas(cache, policy.limits.kv_blocks),
        share_samples=cache.share_samples is True,
    )


def with_prefix_order(policy: PolicySet, spec: PolicySpec) -> PolicySet:
    """``policy`` with its waiting requests put in order by the prefix cache, where the resolved ``spec`` says so.

    Without a cache to look at it stays first come, first served (G-04).
    """
    if spec.order.by not in PREFIX_ORDERS or spec.cache.prefix in (None, "none"):
        return policy
    by_length = spec.order.by == "longest_prefix"
    arrange = LongestPrefixFirst(spec.order.age_tokens or 0) if by_length else DepthFirstByWeight()
    return replace(policy, order=ByArrival(first_come=False), arrange=arrange)


def _host_low(cache: CacheSection) -> int:
    return int((cache.host_watermark or 0) * (cache.host_blocks or 0))


def _quotas(cache: CacheSection, blocks: int) -> Quotas | None:
    if cache.tenant_quota is None and not cache.tenant_quotas:
        return None
    named = {tenant: int(quota.share * blocks) for tenant, quota in (cache.tenant_quotas or {}).items()}
    return Quotas(named, None if cache.tenant_quota is None else int(cache.tenant_quota * blocks))


def _preemption(spec: PolicySpec, block_size: int, profile: Profile | None) -> Preemption | None:
    way = spec.cache.preemption
    if way == "swap":
        return SwapOut()
    if way == "keep":
        return KeepBlocks()
    if way != "cheapest":
        return None
    if profile is None or profile.link is None:
        message = "cheapest compares times, and nothing says what copies and steps take here; use swap or recompute"
        raise InputError([Problem("cache.preemption", message)])
    return CheaperWay(profile.link, profile.cost, block_size)
