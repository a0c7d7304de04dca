"""Prefix index by radix tree, with the semantics of SGLang 0.5.23 (rules G-20 to G-24).

A node is a segment of whole pages (KV blocks), children are found by the key of their first page::

    root -- [a b c] -+- [d e]         a b c d e and a b c f are cached;
                     +- [f]           whoever begins with a b c leases those three blocks

Keys are chained identities (`scheduler_core.kv.digest`): a key equal to a node's says that all before it is equal as
well, so a segment is compared by bisection and never page by page. A request leases every block from the root to where
it is, which is the lock on that path (G-21): leases fall along a path, so a segment may go when none of its blocks is
leased and nothing hangs below it.
"""

import itertools
from bisect import bisect_left
from collections.abc import Hashable, Iterator, Sequence

from scheduler_core.kv.eviction import EVICTIONS, Heat, RankedOrder
from scheduler_core.kv.prefix import Evicted
from scheduler_core.types.errors import CallerError, LawError


class _Node:
    """A segment: ``blocks[i]`` holds ``keys[i]``; ``idle`` of them are leased by nobody; ``depth`` pages lie before."""

    __slots__ = ("blocks", "children", "depth", "heat", "idle", "keys", "parent")

    def __init__(self, keys: list[Hashable], blocks: list[int], parent: "_Node | None", depth: int, heat: Heat) -> None:
        self.keys = keys
        self.blocks = blocks
        self.parent = parent
        self.depth = depth
        self.heat = heat
        self.idle = 0
        self.children: dict[Hashable, _Node] = {}


class RadixIndex:
    """A tree of page-aligned segments over blocks with ids below ``blocks``; leaves are evicted whole (G-22).

    ``evictable`` blocks are leased by nobody, ``protected`` ones are; both totals move when a lease count crosses zero.
    Matching is O(segments x log(pages of one)), everything else O(pages touched).
    """

    __slots__ = ("_block_size", "_idle_flag", "_leaves", "_node_of", "_root", "_tick", "evictable", "size")

    def __init__(self, blocks: int, *, eviction: str = "lru", block_size: int = 1) -> None:
        self._root = _Node([], [], None, 0, Heat(0, 0))
        self._node_of: list[_Node | None] = [None] * blocks
        self._idle_flag = bytearray(blocks)
        self._leaves: RankedOrder[_Node] = RankedOrder(EVICTIONS[eviction])
        self._block_size = block_size
        self._tick = 0
        self.evictable = 0
        self.size = 0

    def __contains__(self, block: int) -> bool:
        return self._node_of[block] is not None

    @property
    def idle(self) -> int:
        """Indexed blocks that nobody leases."""
        return self.evictable

    @property
    def protected(self) -> int:
        """Indexed blocks on the path of a request."""
        return self.size - self.evictable

    def match(self, keys: Sequence[Hashable]) -> list[int]:
        """Walk from the root; the last segment may match in part (G-20)."""
        found: list[int] = []
        for node, length in self._walk(keys, len(keys)):
            found += node.blocks[:length]
        return found

    def hit(self, blocks: Sequence[int]) -> None:
        """Stamp and count a use of the path, and split its last segment where the hit ends (G-20)."""
        if not blocks:
            return
        self._tick += 1
        node: _Node | None = self._split_after(blocks[-1])
        while node is not None:
            node.heat.last = self._tick
            node.heat.uses += 1
            node = node.parent

    def take(self, blocks: Sequence[int]) -> None:
        """Protect what was evictable."""
        for block in blocks:
            node = self._node_of[block]
            if node is None or not self._idle_flag[block]:
                raise CallerError(f"block {block} is not idle")
            self._idle_flag[block] = 0
            node.idle -= 1
            self.evictable -= 1
            if node in self._leaves:
                self._leaves.remove(node)

    def keep(self, block: int) -> bool:
        """A block of the tree becomes evictable; with the whole of a leaf it takes its turn."""
        node = self._node_of[block]
        if node is None:
            return False
        self._idle_flag[block] = 1
        node.idle += 1
        self.evictable += 1
        self._offer(node)
        return True

    def publish(self, keys: Sequence[Hashable], table: Sequence[int], span: tuple[int, int]) -> list[int]:
        """Insert a path of which ``table[:start]`` is there already; what else is there is returned (G-23)."""
        start, stop = span
        self._tick += 1
        node = self._root
        found: list[int] = []
        for segment, length in self._walk(keys, stop):
            segment.heat.last = self._tick
            found += segment.blocks[:length]
            node = segment
        matched = len(found)
        if matched < start:
            raise CallerError(f"{start} blocks should be in the tree, only {matched} are")
        if found:
            node = self._split_after(found[-1])
        if matched < stop:
            self._append(node, list(keys[matched:stop]), list(table[matched:stop]))
        return found[start:]

    def retract(self, blocks: Sequence[int]) -> None:
        """Nothing to do: the tree is filled by steps that have come back (G-25)."""
        if any(self._node_of[block] is not None for block in blocks):
            raise CallerError(f"blocks {list(blocks)} were published before the step that fills them came back")

    def evict(self, count: int) -> list[Evicted]:
        """Give up leaves, smallest rank first, until ``count`` blocks are gone; often a few more (G-22)."""
        evicted: list[Evicted] = []
        while len(evicted) < count:
            leaf = self._leaves.pop()
            parent = leaf.parent
            assert parent is not None  # the root is never offered
            del parent.children[leaf.keys[0]]
            for key, block in zip(reversed(leaf.keys), reversed(leaf.blocks), strict=True):
                self._node_of[block] = None
                self._idle_flag[block] = 0
                evicted.append(Evicted(key, block))
            self.size -= len(leaf.blocks)
            self.evictable -= len(leaf.blocks)
            self._offer(parent)
        return evicted

    def eviction_order(self) -> list[int]:
        """Blocks of the leaves that could go now, in order, each leaf from its end; then the other idle ones."""
        order = [block for leaf in self._leaves for block in reversed(leaf.blocks)]
        known = set(order)
        return order + [block for block, idle in enumerate(self._idle_flag) if idle and block not in known]

    def check(self, leases: Sequence[int]) -> None:
        """Segments chain, totals add up, leases never rise along a path, and exactly the idle leaves are offered."""
        size = evictable = leaves = 0
        for node in self._nodes():
            if node is self._root:
                continue
            parent = node.parent
            if parent is None or parent.children.get(node.keys[0]) is not node or len(node.keys) != len(node.blocks):
                raise LawError(f"segment {node.blocks} hangs on nothing, or its keys do not match its blocks")
            if node.depth != parent.depth + len(parent.blocks):
                raise LawError(f"segment {node.blocks} is at depth {node.depth} below one that ends elsewhere")
            self._check_blocks(node, leases)
            size, evictable = size + len(node.blocks), evictable + node.idle
            offered = not node.children and node.idle == len(node.blocks)
            leaves += offered
            if offered != (node in self._leaves):
                raise LawError(f"segment {node.blocks} has {node.idle} idle blocks, yet offered is {not offered}")
        held = sum(node is not None for node in self._node_of)
        if (size, evictable, leaves) != (held, self.evictable, len(self._leaves)) or size != self.size:
            raise LawError(
                f"the tree has {size} blocks ({held} map to it, its total says {self.size}), {evictable} evictable "
                f"(its total says {self.evictable}) and {leaves} idle leaves ({len(self._leaves)} offered)"
            )

    def _check_blocks(self, node: _Node, leases: Sequence[int]) -> None:
        idle = [block for block in node.blocks if self._idle_flag[block]]
        if node.idle != len(idle) or any(leases[block] for block in idle):
            raise LawError(f"segment {node.blocks}: {node.idle} idle, flags say {idle}")
        path = [leases[block] for block in (*node.parent.blocks, *node.blocks)] if node.parent else []
        if any(later > earlier for earlier, later in itertools.pairwise(path)):
            raise LawError(f"leases rise along the path to segment {node.blocks}: {path}")
        if any(self._node_of[block] is not node for block in node.blocks):
            raise LawError(f"segment {node.blocks}: a block of it maps to another segment")

    def _nodes(self) -> Iterator[_Node]:
        stack = [self._root]
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()

    def _walk(self, keys: Sequence[Hashable], stop: int) -> Iterator[tuple[_Node, int]]:
        """Segments along ``keys[:stop]`` from the root, each with how many pages match; only the last in part."""
        node, done = self._root, 0
        while done < stop:
            child = node.children.get(keys[done])
            if child is None:
                return
            length = _common(child.keys, keys, (done, stop))
            yield child, length
            if length < len(child.keys):
                return
            node, done = child, done + length

    def _split_after(self, block: int) -> _Node:
        """The segment that ends with ``block``: its own, or the upper part of it cut behind ``block``."""
        lower = self._node_of[block]
        if lower is None:
            raise CallerError(f"block {block} is not in the tree")
        cut = lower.blocks.index(block) + 1
        if cut == len(lower.blocks):
            return lower
        assert lower.parent is not None  # the root has no blocks
        offered = lower in self._leaves
        if offered:
            self._leaves.remove(lower)
        heat = Heat(lower.heat.born, lower.heat.last, lower.heat.uses)
        upper = _Node(lower.keys[:cut], lower.blocks[:cut], lower.parent, lower.depth, heat)
        upper.parent = lower.parent
        lower.parent.children[upper.keys[0]] = upper
        lower.keys, lower.blocks, lower.parent = lower.keys[cut:], lower.blocks[cut:], upper
        lower.depth += cut
        upper.children[lower.keys[0]] = lower
        for moved in upper.blocks:
            self._node_of[moved] = upper
        upper.idle = sum(self._idle_flag[moved] for moved in upper.blocks)
        lower.idle -= upper.idle
        self._place(upper)
        self._place(lower)
        self._offer(lower)
        return upper

    def _append(self, parent: _Node, keys: list[Hashable], blocks: list[int]) -> None:
        node = _Node(keys, blocks, parent, parent.depth + len(parent.blocks), Heat(self._tick, self._tick))
        parent.children[keys[0]] = node
        if parent in self._leaves:
            self._leaves.remove(parent)
        for block in blocks:
            if self._node_of[block] is not None:
                raise CallerError(f"block {block} is in the tree already")
            self._node_of[block] = node
        self.size += len(blocks)
        self._place(node)

    def _place(self, node: _Node) -> None:
        node.heat.position = node.depth * self._block_size + len(node.blocks) * self._block_size // 2

    def _offer(self, node: _Node) -> None:
        """Let an idle leaf take its turn; the root never does."""
        if node.parent is not None and not node.children and node.idle == len(node.blocks):
            self._leaves.add(node, node.heat)


def _common(segment: Sequence[Hashable], keys: Sequence[Hashable], span: tuple[int, int]) -> int:
    """How many keys of ``segment`` equal ``keys[start:stop]``, ``span`` being both; the first one is known to."""
    start, stop = span
    most = min(len(segment), stop - start)
    if segment[most - 1] == keys[start + most - 1]:
        return most
    return bisect_left(range(most), 1, key=lambda number: int(segment[number] != keys[start + number]))
