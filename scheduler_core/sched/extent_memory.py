"""The pool of a simulated instance with a prefix cache: content by stretches, so that no block is touched by itself."""

from collections.abc import Hashable, Sequence

from scheduler_core.kv.digest import ChainKeys
from scheduler_core.kv.extents import Extents, Found, Table
from scheduler_core.kv.prefix import Hits
from scheduler_core.request.live import LiveRequest
from scheduler_core.sched.cohort import Cohort
from scheduler_core.sched.counted_memory import NamelessBlocks
from scheduler_core.sched.memory import use_pledge
from scheduler_core.types.plan import Grant


class _Names(Table):
    """A request's table, and how the sequences are called whose blocks it may hold.

    ``shared`` are the keys of its shared blocks, ``base`` names its private prompt blocks after those up to block
    ``prompt``, ``own`` the blocks from there on, which hold emitted tokens.
    """

    __slots__ = ("base", "own", "prompt", "shared")

    def __init__(self, request: LiveRequest, keys: ChainKeys, block_size: int) -> None:
        super().__init__()
        self.shared, self.base = keys.names(request)
        self.prompt = request.spec.prompt_tokens // block_size
        self.own = (self.base, request.id)

    def stretches(self, low: int, high: int) -> list[tuple[Hashable, int, int]]:
        """(sequence, from, to) for blocks ``low .. high - 1``."""
        first, last = len(self.shared), self.prompt
        found: list[tuple[Hashable, int, int]] = []
        if low < first:
            found += [(self.shared[number], number, number + 1) for number in range(low, min(high, first))]
        begin, end = max(low, first), min(high, last)
        if begin < end:
            found.append((self.base, begin, end))
        if high > last:
            found.append((self.own, max(low, last), high))
        return found


class ExtentMemory(NamelessBlocks):
    """Counts as `scheduler_core.sched.memory.BlockMemory` with a hash index and eviction in order of release.

    What a member of the cohort fills is its own and can be found by itself alone, after a preemption: so it is
    published when the member leaves.
    """

    __slots__ = ("_extents", "_keys", "_tables")

    def __init__(self, *, blocks: int, block_size: int) -> None:
        super().__init__(block_size)
        self._extents = Extents(blocks)
        self._keys = ChainKeys(block_size)
        self._tables: dict[int, _Names] = {}

    @property
    def total(self) -> int:
        return self._extents.total

    @property
    def free(self) -> int:
        return self._extents.free

    @property
    def used(self) -> int:
        return self._extents.total - self._extents.free

    @property
    def cached(self) -> int:
        return self._extents.cached

    @property
    def clean(self) -> int:
        return self._extents.free - self._extents.cached

    def match(self, request: LiveRequest) -> Hits:
        found, extents = Found(), self._extents
        for space, low, high in self._table(request).stretches(0, (request.known - 1) // self.block_size):
            if not extents.find(space, low, high, found):
                break
        return found

    def found(self, request: LiveRequest) -> tuple[Sequence[int], int]:
        most = (request.known - 1) // self.block_size
        return self._keys.extend(request, most)[:most], len(self.match(request))

    def idle(self, hits: Hits) -> int:
        assert isinstance(hits, Found)
        return hits.idle

    def adopt(self, request: LiveRequest, hits: Hits) -> None:
        assert isinstance(hits, Found)
        self._extents.adopt(hits, self._table(request))
        request.blocks = request.published = hits.blocks
        request.hit_tokens = hits.blocks * self.block_size
        request.adopt(request.hit_tokens)

    def grow(self, request: LiveRequest, count: int) -> tuple[int, ...]:
        if count:
            self._extents.take(count)
            request.blocks += count
            if request.pledge:
                use_pledge(self, request, count)
        return ()

    def grow_member(self, member: LiveRequest) -> None:
        self._extents.take(1)

    def grow_cohort(self, cohort: Cohort, count: int, *, publish: bool) -> None:
        self._extents.take(count)
        if cohort.pledged:
            self.pledged -= count

    def publish(self, request: LiveRequest, tokens: int, *, fence: int | None = None) -> None:
        full, start = tokens // self.block_size, request.published
        if full > start:
            table = self._table(request)
            for space, low, high in table.stretches(start, full):
                self._extents.publish(space, low, high, table)
            request.published = full

    def publish_cohort(self, cohort: Cohort) -> None:
        return None

    def settle(self, request: LiveRequest) -> None:
        self.publish(request, request.granted)

    def retract(self, request: LiveRequest, tokens: int) -> None:
        full = tokens // self.block_size
        if request.published > full:
            self._extents.retract(self._table(request), request.published - full)
            request.published = full

    def shared(self, request: LiveRequest, grant: Grant) -> bool:
        first = grant.start // self.block_size
        return any(piece.high > first and len(piece.tables) > 1 for piece in self._table(request).pieces)

    def release(self, request: LiveRequest, *, fence: int | None = None) -> int:
        held = request.blocks
        table = self._tables.pop(request.id, None)
        if table is not None:
            self._extents.release(table, held - request.published, fence=fence)
        self.pledged -= request.pledge
        request.blocks = request.pledge = request.published = 0
        return held

    def forget(self) -> int:
        return self._extents.forget()

    def lift(self, fence: int) -> None:
        self._extents.lift(fence)

    def check(self, tables: Sequence[Sequence[int]], counts: Sequence[int]) -> None:
        published = sum(piece.high - piece.low for table in self._tables.values() for piece in table.pieces)
        self._extents.check(self._tables.values(), sum(counts) - published)

    def _table(self, request: LiveRequest) -> _Names:
        table = self._tables.get(request.id)
        if table is None:
            table = self._tables[request.id] = _Names(request, self._keys, self.block_size)
        return table
