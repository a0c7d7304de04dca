"""What the ledger needs from an index of cached prompt beginnings."""

from collections.abc import Hashable, Sequence
from typing import Protocol


class PrefixIndex(Protocol):
    """Maps block identities to blocks that hold them. Owns no block: the ledger tells it what was overwritten."""

    def match(self, keys: Sequence[Hashable]) -> list[int]:
        """Blocks holding the longest indexed beginning of ``keys``."""

    def publish(self, keys: Sequence[Hashable], blocks: Sequence[int]) -> None:
        """Each of ``blocks`` holds its key from now on."""

    def forget(self, blocks: Sequence[int]) -> int:
        """``blocks`` are about to be overwritten; returns how many of them were indexed."""

    def __contains__(self, block: int) -> bool:
        """Whether ``block`` is indexed."""


class NoPrefixIndex:
    """Prefix caching off: nothing is ever found."""

    def match(self, keys: Sequence[Hashable]) -> list[int]:
        return []

    def publish(self, keys: Sequence[Hashable], blocks: Sequence[int]) -> None:
        return None

    def forget(self, blocks: Sequence[int]) -> int:
        return 0

    def __contains__(self, block: int) -> bool:
        return False
