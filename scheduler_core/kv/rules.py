"""What a policy says about the pool of an instance, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRules:
    """How cached prompt beginnings are found and in which order they go.

    ``index`` is ``none``, ``hash`` or ``radix``; ``eviction`` one of `scheduler_core.kv.eviction.EVICTIONS`. The host
    pool, where swapped requests wait, has ``host_blocks`` blocks; ``host_prefix_blocks`` more are for what evicted
    blocks held (`scheduler_core.kv.host_tier`). With fewer than ``clean_low`` blocks clean after planning, cached ones
    are evicted until ``clean_high`` are.
    """

    index: str = "hash"
    eviction: str = "lru"
    host_blocks: int = 0
    host_prefix_blocks: int = 0
    clean_low: int = 0
    clean_high: int = 0

    @property
    def copies(self) -> bool:
        """Whether blocks go to the host and back."""
        return self.host_blocks > 0 or self.host_prefix_blocks > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapRules:
    """When KV of stopped requests moves before somebody needs its blocks (FS-05), and who waits for it (FS-06).

    ``room`` device blocks are kept free for newcomers, and what they leave is used to bring KV back. With fewer than
    ``host_low`` host blocks free, requests without KV do not come in.
    """

    room: int
    host_low: int = 0


@dataclass(frozen=True, slots=True)
class Quotas:
    """Most blocks by tenant; ``others`` is for those not named, None: as many as there are."""

    blocks: Mapping[str, int] = field(default_factory=dict)
    others: int | None = None

    def of(self, tenant: str) -> int | None:
        """The tenant's quota, None without one."""
        return self.blocks.get(tenant, self.others)
