"""Prefix index by chained block identity, with the semantics of vLLM V1 (rules V-19 to V-25)."""

from collections.abc import Hashable, Sequence

from scheduler_core.kv.eviction import EVICTIONS, EvictionQueue, Heat, RankedOrder, ReleaseOrder
from scheduler_core.kv.prefix import Evicted
from scheduler_core.types.errors import CallerError, LawError

_UNRANKED = Heat(0, 0)


class HashIndex:
    """A map from block key to the blocks holding it; several blocks may hold one key (V-23).

    Blocks are evicted one by one, in the order called ``eviction`` (`scheduler_core.kv.eviction.EVICTIONS`): by default
    the least recently released first, of one table its last block first (V-24).
    """

    __slots__ = ("_block_of", "_heat", "_idle", "_key_of", "_spares", "_tick")

    def __init__(self, blocks: int, *, eviction: str = "lru") -> None:
        """An index of blocks with ids below ``blocks``."""
        self._block_of: dict[Hashable, int] = {}
        self._key_of: list[Hashable | None] = [None] * blocks
        self._spares: dict[Hashable, list[int]] = {}
        self._idle: EvictionQueue[int] = ReleaseOrder() if eviction == "lru" else RankedOrder(EVICTIONS[eviction])
        # How each block was used; not kept where the order of release is all that counts.
        self._heat: list[Heat] | None = None if eviction == "lru" else [_UNRANKED] * blocks
        self._tick = 0

    def __contains__(self, block: int) -> bool:
        return self._key_of[block] is not None

    @property
    def idle(self) -> int:
        """Indexed blocks that nobody leases."""
        return len(self._idle)

    def match(self, keys: Sequence[Hashable]) -> list[int]:
        """Walk the chain and stop at the first miss (V-20). O(hits)."""
        found: list[int] = []
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def hit(self, blocks: Sequence[int]) -> None:
        """Count a use of each."""
        if self._heat is not None:
            for block in blocks:
                self._heat[block].uses += 1

    def take(self, blocks: Sequence[int]) -> None:
        """Leave the middle of the order, each in O(1) (V-25)."""
        idle = self._idle
        for block in blocks:
            if block not in idle:
                raise CallerError(f"block {block} is not idle")
            idle.remove(block)

    def keep(self, block: int) -> bool:
        """A block with known content goes to the back of the order (V-24)."""
        if self._key_of[block] is None:
            return False
        heat = _UNRANKED
        if self._heat is not None:
            self._tick += 1
            heat = self._heat[block]
            heat.last = self._tick
        self._idle.add(block, heat)
        return True

    def publish(self, keys: Sequence[Hashable], table: Sequence[int], span: tuple[int, int]) -> list[int]:
        """Index the blocks; one whose key another block holds already becomes its spare (V-23)."""
        key_of, block_of = self._key_of, self._block_of
        for number in range(*span):
            key, block = keys[number], table[number]
            if key_of[block] is not None:
                if key_of[block] != key:
                    raise CallerError(f"block {block} holds {key_of[block]} and cannot hold {key} as well")
                continue
            key_of[block] = key
            if self._heat is not None:
                self._tick += 1
                self._heat[block] = Heat(self._tick, self._tick)
            if block_of.setdefault(key, block) != block:
                self._spares.setdefault(key, []).append(block)
        return []

    def evict(self, count: int) -> list[Evicted]:
        """Give up exactly ``count`` blocks; a spare with the same key takes the place of each."""
        pop = self._idle.pop
        evicted = []
        for _ in range(count):
            block = pop()
            evicted.append(Evicted(self._drop(block), block))
        return evicted

    def retract(self, blocks: Sequence[int]) -> None:
        """Forget what the blocks hold; they are leased, so they are not in the order."""
        for block in blocks:
            if self._key_of[block] is not None:
                self._drop(block)

    def eviction_order(self) -> list[int]:
        """Idle blocks, next to be evicted first."""
        return list(self._idle)

    def check(self, leases: Sequence[int]) -> None:
        """Every indexed block is found under its key, and exactly the unleased ones may be idle."""
        for block, key in enumerate(self._key_of):
            if key is not None and block != self._block_of.get(key) and block not in self._spares.get(key, ()):
                raise LawError(f"block {block} holds {key}, which is not indexed to it")
            if block in self._idle and (key is None or leases[block]):
                raise LawError(f"block {block} is idle with key {key} and {leases[block]} leases")

    def _drop(self, block: int) -> Hashable:
        """Forget what ``block`` holds, and return its key."""
        key, self._key_of[block] = self._key_of[block], None
        spares = self._spares.get(key)
        if spares is None:
            del self._block_of[key]
            return key
        if self._block_of[key] == block:
            self._block_of[key] = spares.pop(0)
        else:
            spares.remove(block)
        if not spares:
            del self._spares[key]
        return key
