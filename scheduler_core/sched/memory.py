"""Blocks on behalf of requests: lookup, growth, publication, release."""

from scheduler_core.kv.digest import ChainKeys
from scheduler_core.kv.ledger import Ledger
from scheduler_core.kv.prefix import NoPrefixIndex, PrefixIndex
from scheduler_core.kv.prefix_hash import HashIndex
from scheduler_core.request.live import LiveRequest


class Memory:
    """The pool of an instance.

    Ranges of a request's table, in blocks::

        0 ...... hit ...... published ...... len(table)
          found    indexed by    leased, not full or
          in cache  this request  not indexed yet
    """

    __slots__ = ("_index", "_keys", "block_size", "caching", "ledger", "pledged")

    def __init__(self, *, blocks: int, block_size: int, caching: bool, first_block: int = 0) -> None:
        self.block_size = block_size
        self.caching = caching
        self._index: PrefixIndex = HashIndex() if caching else NoPrefixIndex()
        self.ledger = Ledger(blocks, self._index, first=first_block)
        self._keys = ChainKeys(block_size)
        self.pledged = 0

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold ``tokens`` positions."""
        return -(-tokens // self.block_size)

    def match(self, request: LiveRequest) -> list[int]:
        """Cached blocks of the request's beginning; never all of it, so that a first token is computed (V-21)."""
        if not self.caching:
            return []
        most = (request.known - 1) // self.block_size
        return self.ledger.readable(self._index.match(self._keys.extend(request, most)[:most]))

    def adopt(self, request: LiveRequest, hits: list[int]) -> None:
        """Start the request's table with found blocks."""
        if hits:
            self.ledger.adopt(hits)
            request.table.extend(hits)
            request.adopt(len(hits) * self.block_size)
            request.published = len(hits)
        request.hit_tokens = len(hits) * self.block_size

    def shortage(self, request: LiveRequest, length: int) -> int:
        """Blocks that a grant of ``length`` tokens needs beyond those the request holds (V-10)."""
        return max(0, self.blocks_for(request.granted + length) - len(request.table))

    def grow(self, request: LiveRequest, count: int) -> tuple[int, ...]:
        """Lease ``count`` more blocks; a pledge made at admission is used up first."""
        if not count:
            return ()
        blocks = self.ledger.allocate(count)
        if request.pledge:
            used = min(count, request.pledge)
            request.pledge -= used
            self.pledged -= used
        request.table.extend(blocks)
        return tuple(blocks)

    def pledge(self, request: LiveRequest, blocks: int) -> None:
        """Keep room for ``blocks`` blocks that the request will ask for later."""
        request.pledge = blocks
        self.pledged += blocks

    def publish(self, request: LiveRequest, tokens: int) -> None:
        """Index the blocks filled by the first ``tokens`` positions (V-20, V-22)."""
        if not self.caching:
            return
        full = tokens // self.block_size
        if full > request.published:
            keys = self._keys.extend(request, full)
            for number in range(request.published, full):
                self.ledger.publish(keys[number], request.table[number])
            request.published = full

    def release(self, request: LiveRequest, *, fence: int | None = None) -> int:
        """Give up the request's blocks and pledge; returns how many blocks it held."""
        held = len(request.table)
        self.ledger.release(request.table, fence=fence)
        self.pledged -= request.pledge
        request.table, request.pledge, request.published = [], 0, 0
        return held
