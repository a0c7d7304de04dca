"""Prefix index by chained block identity, with the semantics of vLLM V1 (rules V-19 to V-25)."""

from collections.abc import Hashable, Sequence


class HashIndex:
    """A map from block key to the blocks holding it; several blocks may hold one key (V-23)."""

    __slots__ = ("_block_of", "_key_of", "_spares")

    def __init__(self) -> None:
        self._block_of: dict[Hashable, int] = {}
        self._key_of: dict[int, Hashable] = {}
        self._spares: dict[Hashable, list[int]] = {}

    def __contains__(self, block: int) -> bool:
        return block in self._key_of

    def __len__(self) -> int:
        return len(self._key_of)

    def match(self, keys: Sequence[Hashable]) -> list[int]:
        """Walk the chain and stop at the first miss (V-20). O(hits)."""
        found: list[int] = []
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def publish(self, key: Hashable, block: int) -> None:
        """Index ``block``; a key that another block holds already gets a spare (V-23)."""
        if self._key_of.get(block) == key:
            return
        self._key_of[block] = key
        if key in self._block_of:
            self._spares.setdefault(key, []).append(block)
        else:
            self._block_of[key] = block

    def forget(self, block: int) -> bool:
        """Drop ``block``; a spare with the same key takes its place."""
        key = self._key_of.pop(block, None)
        if key is None:
            return False
        spares = self._spares.get(key)
        if self._block_of[key] == block:
            if spares:
                self._block_of[key] = spares.pop(0)
            else:
                del self._block_of[key]
        elif spares:
            spares.remove(block)
        if spares is not None and not spares:
            del self._spares[key]
        return True
