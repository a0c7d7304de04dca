"""What the ledger needs from an index of cached prompt beginnings."""

from collections.abc import Hashable, Sequence
from typing import Protocol


class PrefixIndex(Protocol):
    """Maps block identities to blocks that hold them. Owns no block: the ledger tells it what was overwritten."""

    def match(self, keys: Sequence[Hashable]) -> list[int]:
        """Blocks holding the longest indexed beginning of ``keys``."""

    def publish(self, key: Hashable, block: int) -> None:
        """``block`` holds ``key`` from now on."""

    def forget(self, block: int) -> bool:
        """``block`` is about to be overwritten; true if it was indexed."""

    def __contains__(self, block: int) -> bool:
        """Whether ``block`` is indexed."""


class NoPrefixIndex:
    """Prefix caching off: nothing is ever found."""

    def match(self, keys: Sequence[Hashable]) -> list[int]:
        return []

    def publish(self, key: Hashable, block: int) -> None:
        return None

    def forget(self, block: int) -> bool:
        return False

    def __contains__(self, block: int) -> bool:
        return False
