"""Random operations on tiny pools: the radix tree under the ledger against a flat list of segments with locks."""

from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler_core.kv.ledger import Ledger
from scheduler_core.kv.prefix_radix import RadixIndex

Pages = tuple[int, ...]


@dataclass
class Segment:
    """Pages ``path[start:]``, found below those before them; locked once for each request whose path they lie on."""

    path: Pages
    start: int
    born: int
    last: int
    uses: int = 1
    locks: int = 0


class Segments:
    """The rules G-20 to G-23 read a second time: every question walks the whole list."""

    def __init__(self, eviction: str) -> None:
        self.all: list[Segment] = []
        self.eviction = eviction
        self.tick = 0

    def match(self, path: Pages) -> int:
        lengths = (n for n in range(len(path), 0, -1) for s in self.all if s.start < n and s.path[:n] == path[:n])
        return next(lengths, 0)

    def on(self, path: Pages) -> list[Segment]:
        return [s for s in self.all if s.path == path[: len(s.path)]]

    def split(self, path: Pages) -> None:
        for s in list(self.all):
            if s.start < len(path) < len(s.path) and s.path[: len(path)] == path:
                self.all.append(Segment(path, s.start, s.born, s.last, s.uses, s.locks))
                s.start = len(path)

    def lock(self, path: Pages, change: int) -> None:
        self.split(path)
        for s in self.on(path):
            s.locks += change

    def stamp(self, path: Pages, used: int) -> None:
        for s in self.on(path):
            s.last, s.uses = self.tick, s.uses + used

    def hit(self, path: Pages) -> None:
        self.tick += 1
        self.split(path)
        self.stamp(path, 1)

    def insert(self, path: Pages) -> int:
        """Returns how many pages were there."""
        self.tick += 1
        present = self.match(path)
        for s in self.all:  # the last segment is stamped even where it matches in part, and then split
            if s.start < present and s.path[: min(present, len(s.path))] == path[: min(present, len(s.path))]:
                s.last = self.tick
        self.split(path[:present])
        if present < len(path):
            self.all.append(Segment(path, present, self.tick, self.tick))
        return present

    def evict(self, count: int) -> int:
        gone = 0
        while gone < count:
            leaves = [
                s
                for s in self.all
                if not s.locks
                and not any(len(o.path) > len(s.path) and o.path[: len(s.path)] == s.path for o in self.all)
            ]
            keys = {
                "lru": lambda s: s.last,
                "fifo": lambda s: s.born,
                "lfu": lambda s: (s.uses, s.last),
                "slru": lambda s: (s.uses > 1, s.last),
            }
            leaf = min(leaves, key=keys[self.eviction])
            self.all.remove(leaf)
            gone += len(leaf.path) - leaf.start
        return gone

    def below(self, segment: Segment) -> bool:
        length = len(segment.path)
        return any(len(other.path) > length and other.path[:length] == segment.path for other in self.all)

    def pages(self, *, locked: bool) -> int:
        return sum(len(s.path) - s.start for s in self.all if bool(s.locks) is locked)


@dataclass
class Holder:
    """A request: its pages, its blocks, and how many of them are in the tree."""

    path: Pages
    table: list[int]
    published: int


class RadixMachine(RuleBasedStateMachine):
    """Requests begin with what is cached, publish in pieces, and end; fences hold back what they give up."""

    holders = Bundle("holders")

    @initialize(total=st.integers(2, 7), eviction=st.sampled_from(["lru", "fifo", "lfu", "slru"]))
    def make(self, total: Any, eviction: Any) -> None:
        self.index = RadixIndex(total, eviction=eviction)
        self.ledger = Ledger(total, self.index)
        self.model = Segments(eviction)
        self.total = total
        self.private = 0  # blocks that are in no segment: in tables, or given up behind a fence
        self.live: dict[int, Holder] = {}
        self.fenced: dict[int, list[tuple[Pages, int]]] = {}
        self.made = 0

    def keys(self, path: Pages) -> list[Pages]:
        return [path[: n + 1] for n in range(len(path))]

    @rule(target=holders, pages=st.lists(st.integers(0, 2), min_size=1, max_size=5))
    def start(self, pages: Any) -> Any:
        path = tuple(pages)
        hits = self.index.match(self.keys(path)[:-1])
        assert len(hits) == self.model.match(path[:-1])
        self.made += 1
        need = len(path) - len(hits)
        if need > self.ledger.free - self.ledger.idle(hits):
            return self.made  # no room: never started
        self.ledger.adopt(hits)
        if hits:
            self.model.hit(path[: len(hits)])
            self.model.lock(path[: len(hits)], 1)
        clean = self.ledger.clean
        fresh = self.ledger.allocate(need)
        if need > clean:
            self.model.evict(need - clean)
        self.private += need
        self.live[self.made] = Holder(path, [*hits, *fresh], len(hits))
        return self.made

    @rule(number=holders, more=st.integers(1, 5), fence=st.none() | st.integers(0, 1))
    def publish(self, number: Any, more: Any, fence: Any) -> None:
        holder = self.live.get(number)
        if holder is not None:
            self.put(holder, min(len(holder.path), holder.published + more), fence)

    def put(self, holder: Holder, stop: int, fence: Any) -> None:
        if stop <= holder.published:
            return
        path, start = holder.path[:stop], holder.published
        present = self.ledger.publish(self.keys(holder.path), holder.table, (start, stop), fence=fence)
        there = self.model.insert(path)
        assert len(present) == there - start
        assert holder.table[start : start + len(present)] == present
        self.model.lock(path, 1)
        if start:
            self.model.lock(path[:start], -1)
        self.private -= stop - start
        if present and fence is not None:
            self.private += len(present)
            self.fenced.setdefault(fence, []).append(((), len(present)))
        holder.published = stop

    @rule(number=holders, ends=st.booleans(), fence=st.none() | st.integers(0, 1))
    def leave(self, number: Any, ends: Any, fence: Any) -> None:
        """``ends``: everything is published first; else it is given up as it is (G-19)."""
        holder = self.live.pop(number, None)
        if holder is None:
            return
        if ends:
            self.put(holder, len(holder.path), fence)
        path, own = holder.path[: holder.published], len(holder.table) - holder.published
        self.ledger.release(holder.table, fence=fence)
        if fence is None:
            self.settle(path, own)
        else:
            self.fenced.setdefault(fence, []).append((path, own))

    @precondition(lambda self: self.fenced)
    @rule(fence=st.integers(0, 1))
    def lift(self, fence: Any) -> None:
        self.ledger.lift(fence)
        for path, own in self.fenced.pop(fence, []):
            self.settle(path, own)

    def settle(self, path: Pages, own: int) -> None:
        self.private -= own
        if path:
            self.model.lock(path, -1)

    @precondition(lambda self: hasattr(self, "ledger"))
    @rule(count=st.integers(0, 3))
    def make_room(self, count: Any) -> None:
        count = min(count, self.ledger.cached)
        assert self.ledger.evict(count) == self.model.evict(count)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "ledger"):
            return
        self.ledger.check([holder.table for holder in self.live.values()])
        cached = self.model.pages(locked=False)
        protected = self.model.pages(locked=True)
        assert (self.index.evictable, self.index.protected) == (cached, protected)
        assert self.ledger.cached == cached
        assert self.ledger.clean == self.total - cached - protected - self.private


TestRadix = RadixMachine.TestCase
TestRadix.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
