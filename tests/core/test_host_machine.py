"""Random operations on a tiny host pool, against sets and lists."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler_core.kv.host import HostPool


class HostMachine(RuleBasedStateMachine):
    """The model keeps cached keys in order of use, and what the plan being made reads, fills or gives up."""

    @initialize(total=st.integers(1, 5))
    def make(self, total: Any) -> None:
        self.pool = HostPool(total)
        self.total = total
        self.held: list[list[int]] = []
        self.cached: list[tuple[int, int]] = []  # (key, block), least recently used first
        self.busy: set[int] = set()  # blocks that this plan reads or fills, or whose content it gives up

    def room(self) -> Any:
        held = sum(len(table) for table in self.held)
        free = self.total - held - len(self.cached) - len(self.busy - {block for _, block in self.cached})
        return free + sum(block not in self.busy for _, block in self.cached)

    def taken(self, blocks: Any) -> None:
        """``blocks`` were given out: none of them may be in use or touched by this plan."""
        held = {block for table in self.held for block in table}
        for block in blocks:
            assert block not in self.busy and block not in held
            spilled = [pair for pair in self.cached if pair[1] == block]
            if spilled:  # then no block was free, and the least recently used of those not touched went
                assert spilled[0] == next(pair for pair in self.cached if pair[1] not in self.busy)
                self.cached.remove(spilled[0])

    @rule(count=st.integers(0, 3))
    def hold(self, count: Any) -> None:
        assert self.pool.available == self.room()
        if count <= self.room():
            blocks = self.pool.hold(count)
            self.taken(blocks)
            self.held.append(blocks)

    @precondition(lambda self: bool(getattr(self, "held", [])))
    @rule(data=st.data())
    def give_back(self, data: Any) -> None:
        table = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.pool.give_back(table)
        self.busy |= set(table)

    @rule(key=st.integers(0, 4))
    def store(self, key: Any) -> None:
        room = self.room()
        block = self.pool.store(key)
        here = [pair for pair in self.cached if pair[0] == key]
        if here:
            assert block is None
            self.cached.remove(here[0])
            self.cached.append(here[0])
        elif room:
            assert block is not None
            self.taken([block])
            self.cached.append((key, block))
            self.busy.add(block)
        else:
            assert block is None

    @rule(keys=st.lists(st.integers(0, 4), max_size=3, unique=True))
    def load(self, keys: Any) -> None:
        blocks = dict(self.cached)
        found = self.pool.match(keys, 0, len(keys))
        assert found == next((n for n, key in enumerate(keys) if key not in blocks), len(keys))
        assert self.pool.read(keys[:found]) == [blocks[key] for key in keys[:found]]
        for key in keys[:found]:
            self.cached.remove((key, blocks[key]))
            self.cached.append((key, blocks[key]))
            self.busy.add(blocks[key])

    @rule()
    def settle(self) -> None:
        self.pool.settle()
        self.busy.clear()

    @rule()
    def clear(self) -> None:
        assert self.pool.clear() == len(self.cached)
        self.busy |= {block for _, block in self.cached}
        self.cached = []

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "pool"):
            self.pool.check(self.held)
            assert self.pool.available == self.room()
            assert self.pool.cached == len(self.cached)


TestHost = HostMachine.TestCase
TestHost.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
