"""What a policy says about the pool of an instance, as plain values."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRules:
    """How cached prompt beginnings are found and in which order they go.

    ``index`` is ``none``, ``hash`` or ``radix``; ``eviction`` one of `scheduler_core.kv.eviction.EVICTIONS`. The host
    pool, where swapped requests wait, has ``host_blocks`` blocks.
    """

    index: str = "hash"
    eviction: str = "lru"
    host_blocks: int = 0
