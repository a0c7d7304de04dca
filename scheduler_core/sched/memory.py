"""Blocks on behalf of requests: lookup, growth, publication, release."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from scheduler_core.kv.digest import ChainKeys
from scheduler_core.kv.host import HostPool
from scheduler_core.kv.host_tier import HostTier
from scheduler_core.kv.ledger import Ledger
from scheduler_core.kv.prefix import CopiedHits, Evicted, Hits, NoPrefixIndex, PrefixIndex, SharedHits, TieredHits
from scheduler_core.kv.prefix_hash import HashIndex
from scheduler_core.kv.prefix_radix import RadixIndex
from scheduler_core.kv.rules import CacheRules
from scheduler_core.request.live import LiveRequest
from scheduler_core.sched.cohort import Cohort
from scheduler_core.sched.decisions import Deferral
from scheduler_core.types.errors import LawError
from scheduler_core.types.plan import BlockCopy, Grant, Moves, Rebind
from scheduler_core.types.reasons import Defer


class Memory(ABC):
    """The pool of an instance, as planner and commit use it. Counts are in blocks.

    ``free`` can be allocated now, ``cached`` of them hold something that may be hit, ``clean`` do not; ``used`` are
    leased or fenced. ``pledged`` free blocks are promised to running requests.
    """

    __slots__ = ("block_size", "by_member", "host", "pledged")

    block_size: int
    pledged: int
    host: HostPool
    by_member: bool
    """Whether `publish_cohort` must hear of every step; else a member that leaves is settled once."""

    @property
    @abstractmethod
    def total(self) -> int: ...
    @property
    @abstractmethod
    def free(self) -> int: ...
    @property
    @abstractmethod
    def used(self) -> int: ...
    @property
    @abstractmethod
    def cached(self) -> int: ...
    @property
    @abstractmethod
    def clean(self) -> int: ...
    @property
    @abstractmethod
    def host_used(self) -> int:
        """Host blocks that hold something."""

    @abstractmethod
    def match(self, request: LiveRequest) -> Hits:
        """Cached blocks of the request's beginning; never all of it, so that a first token is computed (V-21).

        `TieredHits` where it goes on in host memory, which may hold all of it.
        """

    @abstractmethod
    def found(self, request: LiveRequest) -> tuple[Sequence[int], int]:
        """Identities of the blocks of the request's beginning that could be found, and how many of them are cached."""

    @abstractmethod
    def idle(self, hits: Hits) -> int:
        """How many of ``hits`` are free now, so that adopting them shrinks what can be allocated (V-10)."""

    @abstractmethod
    def share(self, request: LiveRequest, source: LiveRequest) -> SharedHits | None:
        """What ``request`` can have of the prompt of ``source``, another sample with all of its KV; None: not yet."""

    @abstractmethod
    def adopt(self, request: LiveRequest, hits: Hits) -> None:
        """Start the request's table with found blocks."""

    @abstractmethod
    def grow(self, request: LiveRequest, count: int) -> tuple[int, ...]:
        """Lease ``count`` more blocks; a pledge made at admission is used up first."""

    @abstractmethod
    def grow_member(self, member: LiveRequest) -> None:
        """Lease one more block for a member of the cohort."""

    @abstractmethod
    def grow_cohort(self, cohort: Cohort, count: int, *, publish: bool) -> None:
        """Lease the ``count`` free blocks that the members' next step needs, and index what it fills if ``publish``."""

    @abstractmethod
    def publish(self, request: LiveRequest, tokens: int, *, fence: int | None = None) -> None:
        """Index the blocks filled by the first ``tokens`` positions (V-20, V-22).

        Where the index has some already and takes no duplicates, the request's table names those from now on; its own
        copies are free once ``fence`` is lifted (G-23).
        """

    @abstractmethod
    def publish_cohort(self, cohort: Cohort) -> None:
        """Index what the members' step, just come back, has filled."""

    @abstractmethod
    def settle(self, request: LiveRequest) -> None:
        """A member has left the cohort with its numbers written down."""

    @abstractmethod
    def release(self, request: LiveRequest, *, fence: int | None = None) -> int:
        """Give up the request's blocks and pledge; returns how many blocks it held."""

    @abstractmethod
    def lift(self, fence: int) -> None:
        """Nothing touches the blocks behind ``fence`` any more."""

    @abstractmethod
    def pin(self, request: LiveRequest, fence: int) -> int:
        """Lease the blocks of ``request`` once more, until ``fence`` is lifted; how many."""

    @abstractmethod
    def retract(self, request: LiveRequest, tokens: int) -> None:
        """Of what was published of the request, only the blocks filled by the first ``tokens`` positions will be."""

    @abstractmethod
    def trim(self, request: LiveRequest, count: int) -> None:
        """Give up the last ``count`` blocks of the request, which nobody was told of yet."""

    @abstractmethod
    def shared(self, request: LiveRequest, grant: Grant) -> bool:
        """Whether another request leases a block that ``grant`` fills."""

    @abstractmethod
    def swap_out(self, request: LiveRequest, tokens: int) -> Deferral | None:
        """Copy the KV of the first ``tokens`` positions to host blocks and give up the request's blocks.

        Where the host pool has too little room, nothing happens and the numbers are returned.
        """

    @abstractmethod
    def swap_in(self, request: LiveRequest) -> None:
        """Lease blocks for what was swapped out, and copy it back; there must be room."""

    @abstractmethod
    def forget_swapped(self, request: LiveRequest) -> None:
        """Give up what a request has in host memory."""

    @abstractmethod
    def evict_ahead(self) -> int:
        """Evict cached content where fewer blocks are clean than the rules want; returns how many blocks held it."""

    @abstractmethod
    def forget(self) -> int:
        """Give up all cached content of device and host because it is void (V-26); returns how many blocks held it."""

    @abstractmethod
    def distrust(self) -> None:
        """A step failed, so that nobody knows what its copies to the host did."""

    @abstractmethod
    def take_moves(self) -> Moves:
        """Copies and changes of tables since the last call, which are those of the plan being made."""

    @abstractmethod
    def free_order(self) -> list[int]:
        """Free blocks, next to be allocated first; empty where blocks have no identity."""

    @abstractmethod
    def check(self, tables: Sequence[Sequence[int]], counts: Sequence[int]) -> None:
        """Conservation over the holders' tables and block counts; `LawError` with every term."""

    @abstractmethod
    def check_host(self, tables: Sequence[Sequence[int]]) -> None:
        """Conservation of the host's blocks, given the host tables of swapped requests; `LawError` with every term."""


NO_MOVES = Moves()

_COPIED = -(1 << 62)
"""The fence behind which blocks stay that the plan being made copies."""


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold ``tokens`` positions."""
    return -(-tokens // block_size)


def shortage(memory: Memory, request: LiveRequest, length: int) -> int:
    """Blocks that a grant of ``length`` tokens needs beyond those the request holds (V-10)."""
    return max(0, -(-(request.granted + length) // memory.block_size) - request.blocks)


def pledge(memory: Memory, request: LiveRequest, blocks: int) -> None:
    """Keep room for ``blocks`` blocks that the request will ask for later."""
    request.pledge = blocks
    memory.pledged += blocks


def use_pledge(memory: Memory, request: LiveRequest, count: int) -> None:
    """Take ``count`` blocks off what was kept for the request."""
    used = min(count, request.pledge)
    request.pledge -= used
    memory.pledged -= used


class BlockMemory(Memory):
    """Blocks with identities: what kernels and prefix caches need.

    Ranges of a request's table, in blocks::

        0 ...... hit ...... published ...... len(table)
          found    indexed by    leased, not full or
          in cache  this request  not indexed yet
    """

    __slots__ = (
        "_in", "_index", "_keys", "_ledger", "_marks", "_on_write", "_out", "_rebinds", "_tier", "caching",
    )  # fmt: skip

    def __init__(self, *, blocks: int, block_size: int, rules: CacheRules, first_block: int = 0) -> None:
        self.block_size = block_size
        self.caching = self.by_member = rules.index != "none"
        self.pledged = 0
        self._index = _index(rules, blocks=first_block + blocks, block_size=block_size)
        self._ledger = Ledger(blocks, self._index, first=first_block)
        self._keys = ChainKeys(block_size)
        self._marks = rules.clean_low, rules.clean_high
        self.host = HostPool(rules.host_blocks)
        self._tier: HostTier | None = None
        if rules.host_prefix_blocks:
            self._tier = HostTier(rules.host_prefix_blocks, first=rules.host_blocks)
            self._ledger.on_evicted = self._keep_evicted
        self._rebinds: list[Rebind] = []
        self._out: list[BlockCopy] = []
        self._in: list[BlockCopy] = []
        self._on_write: dict[int, int] = {}  # target -> source

    @property
    def total(self) -> int:
        return self._ledger.total

    @property
    def free(self) -> int:
        return self._ledger.free

    @property
    def used(self) -> int:
        return self._ledger.used

    @property
    def cached(self) -> int:
        return self._ledger.cached

    @property
    def clean(self) -> int:
        return self._ledger.clean

    @property
    def host_used(self) -> int:
        return self.host.used + (0 if self._tier is None else len(self._tier))

    def match(self, request: LiveRequest) -> Hits:
        if not self.caching:
            return []
        most = (request.known - 1) // self.block_size
        if self._tier is not None:
            return self._match_tiers(request, self._tier, most)
        return self._index.match(self._keys.extend(request, most)[:most])

    def _match_tiers(self, request: LiveRequest, tier: HostTier, most: int) -> Hits:
        """As `match`; only the last token has to be computed again of what comes from the host."""
        full = request.known // self.block_size
        keys = self._keys.extend(request, full)
        blocks = self._index.match(keys[:most])
        keys = keys[len(blocks) : full]
        slots = tier.find(keys)
        if not slots:
            return blocks
        tokens = min((len(blocks) + len(slots)) * self.block_size, request.known - 1)
        return TieredHits(blocks, keys[: len(slots)], slots, tokens=tokens)

    def share(self, request: LiveRequest, source: LiveRequest) -> SharedHits | None:
        size, table = self.block_size, source.table
        tokens = min(source.spec.prompt_tokens, request.known - 1)
        whole, rest = divmod(tokens, size)
        partial = table[whole] if rest else None
        if self._in and any(copy.target == partial for copy in self._in):
            return None  # the plan being made fills it
        return SharedHits(table[:whole], partial, tokens=tokens, published=min(whole, source.published))

    def found(self, request: LiveRequest) -> tuple[Sequence[int], int]:
        if not self.caching:
            return (), 0
        most = (request.known - 1) // self.block_size
        keys = self._keys.extend(request, most)[:most]
        cached = len(self._index.match(keys))
        return keys, cached if self._tier is None else cached + len(self._tier.find(keys[cached:]))

    def idle(self, hits: Hits) -> int:
        return self._ledger.idle(hits)

    def adopt(self, request: LiveRequest, hits: Hits) -> None:
        blocks = list(hits)
        if isinstance(hits, SharedHits):
            self._ledger.share(blocks)
        else:
            self._ledger.adopt(blocks)
        request.table.extend(blocks)
        request.blocks = request.published = len(blocks)
        request.hit_tokens = len(blocks) * self.block_size
        if isinstance(hits, CopiedHits):
            request.hit_tokens = hits.tokens
            if isinstance(hits, TieredHits):
                self._load(request, hits)
            elif isinstance(hits, SharedHits):
                self._part(request, hits)
        request.adopt(request.hit_tokens)

    def _load(self, request: LiveRequest, hits: TieredHits) -> None:
        """Lease blocks for what is found in the host, and copy it there. It is indexed as if it had been computed."""
        assert self._tier is not None
        self._tier.use(hits.keys)  # before room is made: what is evicted for it goes to the host as well
        blocks = self._ledger.allocate(len(hits.slots))
        self._in += map(BlockCopy, hits.slots, blocks)
        request.table.extend(blocks)
        request.blocks += len(blocks)

    def _part(self, request: LiveRequest, hits: SharedHits) -> None:
        """Copy the block that ``request`` is about to write to and another writes to as well.

        What is copied stays leased until the plan is made, whatever becomes of the other one meanwhile.
        """
        request.published = hits.published
        if hits.partial is not None:
            target = self._ledger.allocate(1)[0]
            self._ledger.pin([hits.partial], _COPIED)
            self._on_write[target] = hits.partial
            request.table.append(target)
            request.blocks += 1

    def _keep_evicted(self, evicted: list[Evicted]) -> None:
        """Copy what goes to the host, before the plan computes."""
        assert self._tier is not None
        for key, block in evicted:
            slot = self._tier.store(key)
            if slot is not None:
                self._out.append(BlockCopy(block, slot))

    def grow(self, request: LiveRequest, count: int) -> tuple[int, ...]:
        if not count:
            return ()
        blocks = self._ledger.allocate(count)
        if request.pledge:
            use_pledge(self, request, count)
        request.table.extend(blocks)
        request.blocks += count
        return tuple(blocks)

    def grow_member(self, member: LiveRequest) -> None:
        self.grow(member, 1)

    def grow_cohort(self, cohort: Cohort, count: int, *, publish: bool) -> None:
        for request in cohort.growing():
            self.grow(request, 1)
        if publish:
            self.publish_cohort(cohort)

    def publish(self, request: LiveRequest, tokens: int, *, fence: int | None = None) -> None:
        if not self.caching:
            return
        full, start = tokens // self.block_size, request.published
        if full > start:
            keys = self._keys.extend(request, full)
            present = self._ledger.publish(keys, request.table, (start, full), fence=fence)
            request.published = full
            if present:
                self._rebinds.append(Rebind(request.id, request.epoch, start, tuple(present)))

    def publish_cohort(self, cohort: Cohort) -> None:
        if self.caching:
            for request in cohort.filling():
                self.publish(request, cohort.known(request))

    def settle(self, request: LiveRequest) -> None:
        return None

    def release(self, request: LiveRequest, *, fence: int | None = None) -> int:
        held = request.blocks
        if self._on_write:
            self._cancel_copies(request.table)
        self._ledger.release(request.table, fence=fence)
        self.pledged -= request.pledge
        request.table, request.blocks, request.pledge, request.published = [], 0, 0, 0
        return held

    def _cancel_copies(self, blocks: Sequence[int]) -> None:
        """``blocks`` are given up in the step that was to copy something into some of them."""
        for block in blocks:
            self._on_write.pop(block, None)

    def lift(self, fence: int) -> None:
        self._ledger.lift(fence)

    def pin(self, request: LiveRequest, fence: int) -> int:
        self._ledger.pin(request.table, fence)
        return request.blocks

    def retract(self, request: LiveRequest, tokens: int) -> None:
        full = tokens // self.block_size
        if request.published > full:
            self._ledger.retract(request.table[full : request.published])
            request.published = full

    def trim(self, request: LiveRequest, count: int) -> None:
        kept = request.blocks - count
        if self._on_write:
            self._cancel_copies(request.table[kept:])
        self._ledger.release(request.table[kept:])
        del request.table[kept:]
        request.blocks = kept

    def shared(self, request: LiveRequest, grant: Grant) -> bool:
        filled = request.table[grant.start // self.block_size :]
        return any(self._ledger.leases(block) > 1 for block in filled)

    def swap_out(self, request: LiveRequest, tokens: int) -> Deferral | None:
        count = blocks_for(tokens, self.block_size)
        if count > self.host.available:
            return Deferral(Defer.HOST_FULL, count, self.host.available)
        request.host_table, request.saved = self.host.hold(count), tokens
        table = request.table
        if self._on_write:  # of a block that is still to be filled, the host gets what would be copied into it
            table = [self._on_write.get(block, block) for block in table]
        self._out += map(BlockCopy, table, request.host_table)
        self.release(request)
        return None

    def swap_in(self, request: LiveRequest) -> None:
        self.grow(request, len(request.host_table))
        self._in += map(BlockCopy, request.host_table, request.table)
        request.restore(request.saved)
        request.hit_tokens = request.saved
        self.forget_swapped(request)

    def forget_swapped(self, request: LiveRequest) -> None:
        self.host.give_back(request.host_table)
        request.host_table, request.saved = [], 0

    def evict_ahead(self) -> int:
        low, high = self._marks
        clean = self._ledger.clean
        return self._ledger.evict(high - clean) if clean < low else 0

    def forget(self) -> int:
        return self._ledger.forget() + (0 if self._tier is None else self._tier.forget())

    def distrust(self) -> None:
        if self._tier is not None:
            self._tier.forget()

    def take_moves(self) -> Moves:
        self.host.settle()
        if self._tier is not None:
            self._tier.settle()
        if not (self._out or self._in or self._rebinds or self._on_write):
            return NO_MOVES
        if len(self._in) > 1:  # of two copies to one block the request of the first has lost it again
            self._in = list({copy.target: copy for copy in self._in}.values())
        on_write = tuple([BlockCopy(source, target) for target, source in self._on_write.items()])
        moves = Moves(tuple(self._out), tuple(self._in), tuple(self._rebinds), on_write)
        self._out, self._in, self._rebinds = [], [], []
        self._on_write.clear()
        self._ledger.lift(_COPIED)
        return moves

    def free_order(self) -> list[int]:
        return self._ledger.free_order()

    def check(self, tables: Sequence[Sequence[int]], counts: Sequence[int]) -> None:
        self._ledger.check(tables)
        if [len(table) for table in tables] != list(counts):
            raise LawError(f"requests count {list(counts)} blocks, their tables are {list(tables)}")

    def check_host(self, tables: Sequence[Sequence[int]]) -> None:
        self.host.check(tables)
        if self._tier is not None:
            self._tier.check()


def _index(rules: CacheRules, *, blocks: int, block_size: int) -> PrefixIndex:
    if rules.index == "radix":
        return RadixIndex(blocks, eviction=rules.eviction, block_size=block_size)
    return HashIndex(blocks, eviction=rules.eviction) if rules.index == "hash" else NoPrefixIndex()
