"""Random operations on a tiny host pool, against lists and sets."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler_core.kv.host import HostPool


class HostMachine(RuleBasedStateMachine):
    """The model keeps the tables of swapped requests, and what the plan being made gives up."""

    @initialize(total=st.integers(1, 5))
    def make(self, total: Any) -> None:
        self.pool = HostPool(total)
        self.total = total
        self.held: list[list[int]] = []
        self.busy: set[int] = set()  # blocks whose content this plan reads for the last time

    def room(self) -> Any:
        return self.total - sum(len(table) for table in self.held) - len(self.busy)

    @rule(count=st.integers(0, 3))
    def hold(self, count: Any) -> None:
        if count <= self.room():
            blocks = self.pool.hold(count)
            held = {block for table in self.held for block in table}
            assert len(set(blocks)) == count
            assert not set(blocks) & (held | self.busy)
            self.held.append(blocks)

    @precondition(lambda self: bool(getattr(self, "held", [])))
    @rule(data=st.data())
    def give_back(self, data: Any) -> None:
        table = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.pool.give_back(table)
        self.busy |= set(table)

    @rule()
    def settle(self) -> None:
        self.pool.settle()
        self.busy.clear()

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "pool"):
            self.pool.check(self.held)
            assert self.pool.available == self.room()


TestHost = HostMachine.TestCase
TestHost.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
