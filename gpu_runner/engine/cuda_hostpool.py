"""KV blocks in pinned host memory, and copies of blocks, on a stream of their own.

Not yet proven on a device: no output of the GPU script is in the repository.
"""

from collections.abc import Callable, Sequence

import torch

from gpu_runner.engine.hostpool import Copied, Copying, copies_blocks
from scheduler_core.types.intervals import COPY, IntervalClass, Lane
from scheduler_core.types.plan import BlockCopy, StepPlan
from scheduler_core.types.time import Ns

HostTime = Callable[[torch.cuda.Event], Ns]
"""Host ``perf_counter_ns`` of a completed device event."""


class CudaHostPool:
    """A host block is contiguous, ``[pages, ...]`` over keys and values of every layer: it crosses the link whole.

    ``blocks`` is how many there are, 0 for none.

    The compute stream waits only for what it must: blocks gathered for the way out, and blocks that came in. The way
    out itself runs beside computing, unless the same plan brings one of its blocks back in.
    """

    def __init__(
        self, pages: Sequence[torch.Tensor], blocks: int, compute: torch.cuda.Stream, host_time: HostTime
    ) -> None:
        self._pages = tuple(pages)
        shape = (blocks, len(self._pages), *pages[0].shape[1:])
        self._host = torch.zeros(shape, dtype=pages[0].dtype, pin_memory=blocks > 0)
        self._device = pages[0].device
        self._compute = compute
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._host_time = host_time

    @property
    def pool_bytes(self) -> int:
        return self._host.nbytes

    def copy(self, plan: StepPlan) -> Copying:
        if not copies_blocks(plan):
            return Copied()
        began, ended = _event(), _event()
        back = {copy.target for copy in plan.copies_out} & {copy.source for copy in plan.copies_in}
        self._stream.wait_stream(self._compute)  # copies see what all earlier plans wrote
        with torch.cuda.stream(self._stream):
            began.record()
            leaving = self._gather(plan.copies_out)
            if back:
                self._send(leaving, plan.copies_out)
            self._part(plan.copies_on_write)
            self._fetch(plan.copies_in)
            safe = torch.cuda.Event()  # type: ignore[no-untyped-call]
            safe.record()
            if not back:
                self._send(leaving, plan.copies_out)
            ended.record()
        self._compute.wait_event(safe)
        return _Running(began, ended, self._host_time, leaving)

    def _gather(self, copies: tuple[BlockCopy, ...]) -> torch.Tensor | None:
        if not copies:
            return None
        sources = torch.tensor([copy.source for copy in copies], device=self._device)
        return torch.stack([page.index_select(0, sources) for page in self._pages], dim=1)

    def _part(self, copies: tuple[BlockCopy, ...]) -> None:
        if copies:
            sources, targets = torch.tensor(copies, device=self._device).unbind(1)
            for page in self._pages:
                page.index_copy_(0, targets, page.index_select(0, sources))

    def _send(self, leaving: torch.Tensor | None, copies: tuple[BlockCopy, ...]) -> None:
        if leaving is not None:
            for place, copy in enumerate(copies):
                self._host[copy.target].copy_(leaving[place], non_blocking=True)

    def _fetch(self, copies: tuple[BlockCopy, ...]) -> None:
        if not copies:
            return
        arriving = torch.empty((len(copies), *self._host.shape[1:]), dtype=self._host.dtype, device=self._device)
        for place, copy in enumerate(copies):
            arriving[place].copy_(self._host[copy.source], non_blocking=True)
        targets = torch.tensor([copy.target for copy in copies], device=self._device)
        for number, page in enumerate(self._pages):
            page.index_copy_(0, targets, arriving[:, number])


class _Running:
    """Copies on the device; holds the gathered blocks until they have left."""

    def __init__(
        self, began: torch.cuda.Event, ended: torch.cuda.Event, host_time: HostTime, held: torch.Tensor | None
    ) -> None:
        self._began = began
        self._ended = ended
        self._host_time = host_time
        self._held = held

    def lanes(self) -> tuple[Lane, ...]:
        self._ended.synchronize()
        self._held = None
        return (Lane(IntervalClass.SWAP, COPY, self._host_time(self._began), self._host_time(self._ended)),)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
