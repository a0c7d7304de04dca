"""What the ledger needs from an index of cached prompt beginnings."""

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple, Protocol

from scheduler_core.types.errors import CallerError


class Evicted(NamedTuple):
    """A block whose content is given up, and what it held."""

    key: Hashable
    block: int


class Hits(Protocol):
    """The cached beginning of a request: its length in blocks, and their ids where blocks have any."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[int]: ...


class CopiedHits:
    """A beginning of ``tokens`` tokens of which the later part has to be copied.

    It is as long as the part whose blocks it gives; who adopts it needs ``loads`` blocks more, for the copies.
    """

    __slots__ = ("_blocks", "loads", "tokens")

    def __init__(self, blocks: Sequence[int], *, loads: int, tokens: int) -> None:
        self._blocks = blocks
        self.loads = loads
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self._blocks)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[int]:
        return iter(self._blocks)


class TieredHits(CopiedHits):
    """A cached beginning of which the later part is in host memory, in ``slots`` under ``keys``."""

    __slots__ = ("keys", "slots")

    def __init__(self, blocks: Sequence[int], keys: Sequence[Hashable], slots: Sequence[int], *, tokens: int) -> None:
        super().__init__(blocks, loads=len(slots), tokens=tokens)
        self.keys = keys
        self.slots = slots


class SharedHits(CopiedHits):
    """The prompt of another sample of it: whole blocks to share, and ``partial``, the one to copy; None without one.

    The first ``published`` of the blocks are indexed.
    """

    __slots__ = ("partial", "published")

    def __init__(self, blocks: Sequence[int], partial: int | None, *, tokens: int, published: int) -> None:
        super().__init__(blocks, loads=int(partial is not None), tokens=tokens)
        self.partial = partial
        self.published = published


class PrefixIndex(Protocol):
    """Maps block identities to blocks that hold them, and keeps the *idle* ones, which nobody leases, until evicted.

    ``idle`` is how many those are. The ledger says who leases what: a block falls idle by `keep` and is used again by
    `take`.
    """

    @property
    def idle(self) -> int: ...

    def match(self, keys: Sequence[Hashable]) -> list[int]:
        """Blocks holding the longest indexed beginning of ``keys``. Changes nothing."""

    def hit(self, blocks: Sequence[int]) -> None:
        """``blocks``, found by `match`, are about to be leased for a request that begins with them."""

    def take(self, blocks: Sequence[int]) -> None:
        """Idle ``blocks`` are leased again; `CallerError` for one that is not idle."""

    def keep(self, block: int) -> bool:
        """Nobody leases ``block`` any more: whether its content is known, so that it stays here as idle."""

    def publish(self, keys: Sequence[Hashable], table: Sequence[int], span: tuple[int, int]) -> list[int]:
        """``table[start:stop]`` hold ``keys[start:stop]`` from now on, ``span`` being both; what is before is indexed.

        Returns blocks that held the first of these keys before, for the caller to lease in place of its own (G-23);
        empty where an index takes duplicates (V-23).
        """

    def retract(self, blocks: Sequence[int]) -> None:
        """Leased ``blocks`` do not hold what was published of them after all: the step that fills them is not run."""

    def evict(self, count: int) -> list[Evicted]:
        """Give up at least ``count`` idle blocks, in order; there must be as many. May give up more (G-22)."""

    def eviction_order(self) -> list[int]:
        """Idle blocks, next to be evicted first, as things stand. O(idle)."""

    def check(self, leases: Sequence[int]) -> None:
        """The index's own structure, given the lease count of every block; `LawError` says what is wrong."""

    def __contains__(self, block: int) -> bool:
        """Whether ``block`` is indexed."""


class NoPrefixIndex:
    """Prefix caching off: nothing is ever found."""

    idle = 0

    def match(self, keys: Sequence[Hashable]) -> list[int]:
        return []

    def hit(self, blocks: Sequence[int]) -> None:
        return None

    def take(self, blocks: Sequence[int]) -> None:
        if blocks:
            raise CallerError(f"blocks {list(blocks)} are not idle: nothing is cached")

    def keep(self, block: int) -> bool:
        return False

    def publish(self, keys: Sequence[Hashable], table: Sequence[int], span: tuple[int, int]) -> list[int]:
        return []

    def retract(self, blocks: Sequence[int]) -> None:
        return None

    def evict(self, count: int) -> list[Evicted]:
        return []

    def eviction_order(self) -> list[int]:
        return []

    def check(self, leases: Sequence[int]) -> None:
        return None

    def __contains__(self, block: int) -> bool:
        return False
