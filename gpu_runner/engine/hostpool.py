"""Copies of whole KV blocks: to host memory and back, and on the device where a sample is to write to a shared one.

Pages keep the layout of the attention backend, whichever it is: blocks come first in all of them.
"""

import time
from collections.abc import Sequence
from typing import Protocol

import torch

from scheduler_core.types.errors import CallerError
from scheduler_core.types.intervals import COPY, IntervalClass, Lane
from scheduler_core.types.plan import BlockCopy, StepPlan


class HostPool(Protocol):
    """Executes the copies of plans, in launch order with everything else that touches the pages."""

    @property
    def pool_bytes(self) -> int:
        """Host bytes held."""

    def copy(self, plan: StepPlan) -> "Copying":
        """Start the copies of ``plan``: all of its ``copies_out``, then those on write, then its ``copies_in``."""


class Copying(Protocol):
    """Copies that were started."""

    def lanes(self) -> tuple[Lane, ...]:
        """Wait for their end; when they ran, as host ``perf_counter_ns``. Empty when there was nothing to copy."""


def check_copies(plan: StepPlan, *, kv_blocks: int, host_blocks: int) -> None:
    """`CallerError` for copies that no plan may ask for: a block outside its pool, or a target named twice."""
    for name, copies, sources, targets in (
        ("copies_out", plan.copies_out, kv_blocks, host_blocks),
        ("copies_on_write", plan.copies_on_write, kv_blocks, kv_blocks),
        ("copies_in", plan.copies_in, host_blocks, kv_blocks),
    ):
        for copy in copies:
            if not (0 <= copy.source < sources and 0 <= copy.target < targets):
                raise CallerError(f"step {plan.id}: {name} {tuple(copy)} is outside pools of {sources} and {targets}")
        if len({copy.target for copy in copies}) != len(copies):
            raise CallerError(f"step {plan.id}: {name} writes a block twice")
    filled = {copy.target for copy in (*plan.copies_on_write, *plan.copies_in)}
    for copy in plan.copies_on_write:
        if copy.source in filled:
            raise CallerError(f"step {plan.id}: copies_on_write reads block {copy.source}, which the step fills")


def copies_blocks(plan: StepPlan) -> bool:
    """Whether ``plan`` asks for any copy."""
    return bool(plan.copies_out or plan.copies_in or plan.copies_on_write)


class Copied:
    """Copies that have ended already."""

    def __init__(self, lanes: tuple[Lane, ...] = ()) -> None:
        self._lanes = lanes

    def lanes(self) -> tuple[Lane, ...]:
        return self._lanes


class CpuHostPool:
    """Both pools lie in host memory: copies are made at once, page array by page array.

    ``pages`` are the arrays of the device pool, blocks first; ``blocks`` is how many the host has, 0 for none.
    """

    def __init__(self, pages: Sequence[torch.Tensor], blocks: int) -> None:
        self._pages = tuple(pages)
        self._host = [torch.zeros((blocks, *page.shape[1:]), dtype=page.dtype) for page in pages]

    @property
    def pool_bytes(self) -> int:
        return sum(held.nbytes for held in self._host)

    def copy(self, plan: StepPlan) -> Copied:
        if not copies_blocks(plan):
            return Copied()
        began = time.perf_counter_ns()
        for page, held in zip(self._pages, self._host, strict=True):
            _move(page, held, plan.copies_out)
        for page in self._pages:
            _move(page, page, plan.copies_on_write)
        for page, held in zip(self._pages, self._host, strict=True):
            _move(held, page, plan.copies_in)
        return Copied((Lane(IntervalClass.SWAP, COPY, began, time.perf_counter_ns()),))


def _move(source: torch.Tensor, target: torch.Tensor, copies: tuple[BlockCopy, ...]) -> None:
    if copies:
        sources, targets = (torch.tensor(places) for places in zip(*copies, strict=True))
        target.index_copy_(0, targets, source.index_select(0, sources))
