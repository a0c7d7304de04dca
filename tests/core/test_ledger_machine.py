"""Random operations on tiny pools, against a model that only knows sets and lists."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler_core.kv.ledger import Ledger
from scheduler_core.kv.prefix_hash import HashIndex


class LedgerMachine(RuleBasedStateMachine):
    """The model keeps the free order as a plain list and the cache as a plain dict of block to key."""

    tables = Bundle("tables")

    @initialize(total=st.integers(2, 7))
    def make(self, total: Any) -> None:
        self.index = HashIndex(total)
        self.ledger = Ledger(total, self.index)
        self.total = total
        self.order = list(range(total))
        self.keys: dict[int, int] = {}
        self.live: dict[int, list[int]] = {}
        self.fenced: dict[int, list[list[int]]] = {}
        self.made = 0

    @rule(target=tables, data=st.data())
    def allocate(self, data: Any) -> Any:
        count = data.draw(st.integers(0, len(self.order)))
        blocks = self.ledger.allocate(count)
        assert blocks == self.order[:count]
        del self.order[:count]
        for block in blocks:
            self.keys.pop(block, None)
        self.made += 1
        self.live[self.made] = blocks
        return self.made

    @rule(table=tables, key=st.integers(0, 3), data=st.data())
    def publish(self, table: Any, key: Any, data: Any) -> None:
        blocks = [block for block in self.live.get(table, ()) if block not in self.keys]
        if blocks:
            block = data.draw(st.sampled_from(blocks))
            self.ledger.publish([key], [block], (0, 1))
            self.keys[block] = key

    @rule(target=tables, keys=st.lists(st.integers(0, 3), max_size=3, unique=True))
    def hit(self, keys: Any) -> Any:
        found = self.index.match(keys)
        for key, block in zip(keys, found, strict=False):
            assert self.keys[block] == key
        missing = keys[len(found) : len(found) + 1]
        assert not missing or missing[0] not in self.keys.values()
        assert self.ledger.idle(found) == sum(block in self.order for block in found)
        self.ledger.adopt(found)
        self.order = [block for block in self.order if block not in found]
        self.made += 1
        self.live[self.made] = found
        return self.made

    @rule(table=tables, fence=st.none() | st.integers(0, 1))
    def release(self, table: Any, fence: Any) -> None:
        blocks = self.live.pop(table, None)
        if blocks is None:
            return
        self.ledger.release(blocks, fence=fence)
        if fence is None:
            self.settle(blocks)
        else:
            self.fenced.setdefault(fence, []).append(blocks)

    @precondition(lambda self: any(self.fenced.values()))
    @rule(fence=st.integers(0, 1))
    def lift(self, fence: Any) -> None:
        self.ledger.lift(fence)
        behind = self.fenced.get(fence, [])
        while behind:
            self.settle(behind.pop(0))

    def settle(self, blocks: Any) -> None:
        behind = [table for tables in self.fenced.values() for table in tables]
        still = {block for others in [*self.live.values(), *behind] for block in others}
        freed = [block for block in reversed(blocks) if block not in still]
        unknown = [block for block in freed if block not in self.keys]
        known = [block for block in freed if block in self.keys]
        self.order = [*unknown, *self.order, *known]

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "ledger"):
            return
        self.ledger.check(self.live.values())
        assert self.ledger.free_order() == self.order
        assert self.ledger.cached == sum(block in self.keys for block in self.order)
        assert self.ledger.used + self.ledger.cached + self.ledger.clean == self.total


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=60, stateful_step_count=30)
