"""From the cache section of a policy to the rules of the pool; the same for every preset."""

from dataclasses import replace

from scheduler_core.kv.rules import CacheRules
from scheduler_core.sched.decisions import Publish
from scheduler_core.sched.policy import PolicySet
from scheduler_core.spec.policy import PolicySpec


def with_pool(policy: PolicySet, spec: PolicySpec) -> PolicySet:
    """``policy`` with what the resolved ``spec`` says about its cache.

    A radix tree takes no duplicates, and a block table cannot be exchanged under a step that still writes: it is filled
    when steps come back, whatever the preset does with block hashes (G-25).
    """
    cache = spec.cache
    index = cache.prefix or "none"
    return replace(
        policy,
        prefix_cache=index != "none",
        publish=Publish.AT_CHUNK if index == "radix" else policy.publish,
        cache=CacheRules(index=index, eviction=cache.eviction or "lru"),
    )
