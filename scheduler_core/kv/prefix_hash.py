"""Prefix index by chained block identity, with the semantics of vLLM V1 (rules V-19 to V-25)."""

from collections.abc import Hashable, Sequence

from scheduler_core.types.errors import CallerError


class HashIndex:
    """A map from block key to the blocks holding it; several blocks may hold one key (V-23)."""

    __slots__ = ("_block_of", "_key_of", "_spares")

    def __init__(self, blocks: int) -> None:
        """An index of blocks with ids below ``blocks``."""
        self._block_of: dict[Hashable, int] = {}
        self._key_of: list[Hashable | None] = [None] * blocks
        self._spares: dict[Hashable, list[int]] = {}

    def __contains__(self, block: int) -> bool:
        return self._key_of[block] is not None

    def match(self, keys: Sequence[Hashable]) -> list[int]:
        """Walk the chain and stop at the first miss (V-20). O(hits)."""
        found: list[int] = []
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def publish(self, keys: Sequence[Hashable], blocks: Sequence[int]) -> None:
        """Index ``blocks``; one whose key another block holds already becomes its spare (V-23)."""
        key_of, block_of = self._key_of, self._block_of
        for key, block in zip(keys, blocks, strict=True):
            if key_of[block] is not None:
                if key_of[block] != key:
                    raise CallerError(f"block {block} holds {key_of[block]} and cannot hold {key} as well")
                continue
            key_of[block] = key
            if block_of.setdefault(key, block) != block:
                self._spares.setdefault(key, []).append(block)

    def forget(self, blocks: Sequence[int]) -> int:
        """Drop ``blocks``; a spare with the same key takes the place of each."""
        dropped, key_of, block_of, spares = 0, self._key_of, self._block_of, self._spares
        for block in blocks:
            key = key_of[block]
            if key is None:
                continue
            key_of[block] = None
            dropped += 1
            if key in spares:
                self._drop_spare(key, block)
            else:
                del block_of[key]
        return dropped

    def _drop_spare(self, key: Hashable, block: int) -> None:
        spares = self._spares[key]
        if self._block_of[key] == block:
            self._block_of[key] = spares.pop(0)
        else:
            spares.remove(block)
        if not spares:
            del self._spares[key]
