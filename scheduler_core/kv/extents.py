"""An account of cached content by stretches instead of blocks: for simulations, where blocks need no identity.

It counts as `scheduler_core.kv.ledger.Ledger` does over a `scheduler_core.kv.prefix_hash.HashIndex` in order of release
(V-19 to V-25). A *piece* is a stretch of blocks of one sequence that were published together and have the same
leases, so that leasing, releasing and evicting cost O(pieces), whatever their length::

    free   = clean (hold nothing known) + cached (blocks of idle pieces)
    leased = blocks of pieces in tables + blocks that their holders have not filled yet
    fenced = leased only by tables given up, whose leases end when a step has come back

Where several pieces hold the same blocks of a sequence, the one published first is found (V-23).
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from itertools import count

from scheduler_core.types.errors import LawError


class Piece:
    """Blocks ``low .. high - 1`` of the sequence named ``space``; ``tables`` are those that lease it.

    ``slot`` is its place in the order of eviction, None while it is leased.
    """

    __slots__ = ("high", "low", "slot", "space", "tables")

    def __init__(self, space: Hashable, low: int, high: int) -> None:
        self.space = space
        self.low = low
        self.high = high
        self.tables: list[Table] = []
        self.slot: int | None = None


class Table:
    """The published pieces that a request leases, in order of position; compared by identity."""

    __slots__ = ("pieces",)

    def __init__(self) -> None:
        self.pieces: list[Piece] = []


class Found:
    """The cached beginning of a request: (piece, from, to) in order. Its length is in blocks; it has no block ids."""

    __slots__ = ("blocks", "idle", "stretches")

    def __init__(self) -> None:
        self.blocks = 0
        self.idle = 0
        self.stretches: list[tuple[Piece, int, int]] = []

    def __len__(self) -> int:
        return self.blocks

    def __iter__(self) -> Iterator[int]:
        return iter(())

    def add(self, piece: Piece, low: int, high: int) -> None:
        """``low .. high - 1`` of ``piece`` come next."""
        self.stretches.append((piece, low, high))
        self.blocks += high - low
        if not piece.tables:
            self.idle += high - low


class Extents:
    """Pieces by sequence, the idle ones in order of release, and counts of free blocks."""

    __slots__ = ("_fenced", "_of", "_slots", "_stamp", "cached", "free", "total")

    def __init__(self, total: int) -> None:
        self.total = self.free = total
        self.cached = 0
        self._of: dict[Hashable, list[Piece]] = {}  # in order of publication
        # Slots in order of eviction; a slot's pieces were one once, and go from the last position to the first.
        self._slots: OrderedDict[int, list[Piece]] = OrderedDict()
        self._stamp = count()
        self._fenced: dict[int, list[tuple[Table, int]]] = {}

    def take(self, blocks: int) -> None:
        """Lease free blocks: those that hold nothing known, then what was released longest ago (V-24)."""
        evicted = blocks - (self.free - self.cached)
        self.free -= blocks
        if evicted > 0:
            self._evict(evicted)

    def find(self, space: Hashable, low: int, high: int, found: Found) -> bool:
        """Add what is indexed of ``low .. high - 1``, up to the first gap, to ``found``; true if that is all of it."""
        pieces = self._of.get(space)
        if pieces is None:
            return low >= high
        while low < high:
            end = high
            for piece in pieces:
                if piece.low <= low < piece.high:
                    break
                if low < piece.low < end:
                    end = piece.low  # from there on this one, published earlier, is the one that is found
            else:
                return False
            end = min(end, piece.high)
            found.add(piece, low, end)
            low = end
        return True

    def adopt(self, found: Found, table: Table) -> None:
        """Lease what was found; idle pieces leave the middle of the order of eviction (V-25)."""
        for piece, low, high in found.stretches:
            own = self._carve(piece, low, high)
            if own.slot is not None:
                self._unslot(own)
                self.free -= high - low
                self.cached -= high - low
            own.tables.append(table)
            table.pieces.append(own)

    def publish(self, space: Hashable, low: int, high: int, table: Table) -> None:
        """Leased blocks ``low .. high - 1`` of ``space`` become known; they are the next ones of ``table``."""
        pieces = self._of.get(space)
        if pieces is None:
            pieces = self._of[space] = []
        elif table.pieces and (last := table.pieces[-1]) is pieces[-1] and last.high == low and len(last.tables) == 1:
            last.high = high
            return
        piece = Piece(space, low, high)
        piece.tables.append(table)
        pieces.append(piece)
        table.pieces.append(piece)

    def retract(self, table: Table, blocks: int) -> None:
        """The last ``blocks`` published of ``table`` are not known after all; they stay leased to it alone."""
        while blocks:
            piece = table.pieces[-1]
            if len(piece.tables) > 1:
                raise LawError(f"blocks {piece.low} to {piece.high} of {piece.space} are relied on by another request")
            size = piece.high - piece.low
            if size > blocks:
                piece.high -= blocks
                return
            blocks -= size
            table.pieces.pop()
            self._drop(piece)

    def release(self, table: Table, unknown: int, *, fence: int | None = None) -> None:
        """End the leases of a table, last position first (V-24), and of ``unknown`` blocks never published."""
        if fence is not None:
            self._fenced.setdefault(fence, []).append((table, unknown))
            return
        freed = []
        for piece in reversed(table.pieces):
            piece.tables.remove(table)
            if not piece.tables:
                freed.append(piece)
        self._settle(freed, unknown)

    def lift(self, fence: int) -> None:
        """Nothing touches what stands behind ``fence`` any more: its leases end."""
        for table, unknown in self._fenced.pop(fence, ()):
            self.release(table, unknown)

    def forget(self) -> int:
        """Make all cached blocks clean; returns how many."""
        cached = self.cached
        if cached:
            self._evict(cached)
        return cached

    def check(self, tables: Iterable[Table], unknown: int) -> None:
        """Conservation, with ``unknown`` leased blocks in no piece; `LawError` with every term. O(pieces)."""
        idle = [piece for slot in self._slots.values() for piece in slot]
        given_up = [given for behind in self._fenced.values() for given in behind]
        fenced = sum(blocks for _, blocks in given_up)
        known = [piece for pieces in self._of.values() for piece in pieces]
        leased = [piece for piece in known if piece.tables]
        terms = f"free {self.free} + leased {_size(leased)} + {unknown} + fenced {fenced}"
        if self.free + _size(leased) + unknown + fenced != self.total or _size(idle) != self.cached:
            raise LawError(f"{terms} != total {self.total} (cached {self.cached}, counted {_size(idle)})")
        holders = [
            (id(piece), id(table)) for table in [*tables, *[table for table, _ in given_up]] for piece in table.pieces
        ]
        if sorted(holders) != sorted((id(piece), id(table)) for piece in known for table in piece.tables):
            raise LawError("the tables of pieces differ from the pieces of tables")
        if any(piece.low >= piece.high or (piece.tables and piece.slot is not None) for piece in known):
            raise LawError("a piece is empty, or idle while it is leased")

    def _settle(self, pieces: list[Piece], unknown: int) -> None:
        blocks = 0
        for piece in pieces:
            piece.slot = slot = next(self._stamp)
            self._slots[slot] = [piece]
            blocks += piece.high - piece.low
        self.cached += blocks
        self.free += blocks + unknown

    def _evict(self, blocks: int) -> None:
        """Forget idle blocks, from the end of what was released longest ago."""
        self.cached -= blocks
        while blocks:
            pieces = next(iter(self._slots.values()))
            piece = pieces[0]
            size = piece.high - piece.low
            if size > blocks:
                piece.high -= blocks
                return
            blocks -= size
            self._unslot(piece)
            self._drop(piece)

    def _drop(self, piece: Piece) -> None:
        others = self._of[piece.space]
        if len(others) == 1:
            del self._of[piece.space]
        else:
            others.remove(piece)

    def _unslot(self, piece: Piece) -> None:
        assert piece.slot is not None
        pieces = self._slots[piece.slot]
        if len(pieces) == 1:
            del self._slots[piece.slot]
        else:
            pieces.remove(piece)
        piece.slot = None

    def _carve(self, piece: Piece, low: int, high: int) -> Piece:
        """The piece that is exactly ``low .. high - 1`` of ``piece``."""
        if high < piece.high:
            piece = self._cut(piece, high)
        if low > piece.low:
            self._cut(piece, low)
        return piece

    def _cut(self, piece: Piece, at: int) -> Piece:
        """Cut a piece in two before position ``at``; it keeps the later part, and the new, earlier one is returned."""
        early = Piece(piece.space, piece.low, at)
        piece.low = at
        early.slot, early.tables = piece.slot, list(piece.tables)
        siblings = self._of[piece.space]
        siblings.insert(siblings.index(piece), early)
        if piece.slot is not None:
            order = self._slots[piece.slot]
            order.insert(order.index(piece) + 1, early)
        for table in piece.tables:
            table.pieces.insert(table.pieces.index(piece), early)
        return early


def _size(pieces: Iterable[Piece]) -> int:
    return sum(piece.high - piece.low for piece in pieces)
