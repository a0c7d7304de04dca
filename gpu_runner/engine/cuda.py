"""Runs flat batches on a CUDA device: pinned staging, a copy stream, captured decodes, and times from device events.

Not yet proven on a device: no output of the GPU script is in the repository.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from gpu_runner.engine.attention.base import Attention, CapturableAttention, DeviceBatch
from gpu_runner.engine.cuda_hostpool import CudaHostPool
from gpu_runner.engine.decode_graphs import BUCKETS, DecodeGraphs
from gpu_runner.engine.instance import InFlight, Yield
from gpu_runner.engine.layout import FlatBatch
from gpu_runner.engine.model.decoder import Decoder
from gpu_runner.engine.sampling import pick
from gpu_runner.engine.settings import Sampling
from scheduler_core.types.intervals import COMPUTE, DEVICE, HOST, IntervalClass, Lane
from scheduler_core.types.time import NS_PER_MS, Ns

Array: TypeAlias = npt.NDArray[Any]

_LOG = logging.getLogger(__name__)

LINK = "link"
_FIELDS = ("token_ids", "positions", "slots", "starts", "contexts", "tables", "sampled")
_FEEDBACK = ("sampled_rows", "late", "late_rows")
_ALIGN = 16


@dataclass(frozen=True, slots=True)
class Anchor:
    """A device event and the host time at which it was seen complete: ties the two clocks together."""

    event: torch.cuda.Event
    host_ns: Ns

    def host_time(self, event: torch.cuda.Event) -> Ns:
        """Host ``perf_counter_ns`` of a completed ``event``."""
        return self.host_ns + round(float(self.event.elapsed_time(event)) * NS_PER_MS)


class Staging:
    """A pinned host buffer and its twin on the device, for all arrays of a batch in one copy."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._used = 0
        self._host = torch.empty(0, dtype=torch.uint8)
        self._twin = torch.empty(0, dtype=torch.uint8, device=device)

    def pack(self, arrays: list[Array]) -> list[torch.Tensor]:
        """Lay ``arrays`` side by side in the host buffer; returns where each will lie on the device."""
        offsets, size = [], 0
        for array in arrays:
            offsets.append(size)
            size += -(-array.nbytes // _ALIGN) * _ALIGN
        if self._host.numel() < size:
            self._host = torch.empty(2 * size, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
            self._twin = torch.empty(2 * size, dtype=torch.uint8, device=self._device)
        placed = []
        for offset, array in zip(offsets, arrays, strict=True):
            flat = torch.from_numpy(np.ascontiguousarray(array)).view(-1)
            self._host[offset : offset + array.nbytes].view(flat.dtype).copy_(flat)
            placed.append(self._twin[offset : offset + array.nbytes].view(flat.dtype).view(array.shape))
        self._used = size
        return placed

    def copy(self) -> None:
        """Start the copy of what was packed, on the current stream."""
        self._twin[: self._used].copy_(self._host[: self._used], non_blocking=True)


@dataclass(slots=True)
class _Running:
    """A batch on the device."""

    flat: FlatBatch
    began: Ns
    prepared: Ns
    anchor: Anchor
    copied: tuple[torch.cuda.Event, torch.cuda.Event]
    computed: tuple[torch.cuda.Event, torch.cuda.Event]
    read: torch.cuda.Event
    tokens: torch.Tensor
    margins: torch.Tensor

    def ready(self) -> bool:
        return bool(self.read.query())  # type: ignore[no-untyped-call]

    def collect(self) -> Yield:
        self.read.synchronize()
        when = self.anchor.host_time
        transfer = Lane(IntervalClass.INPUT_TRANSFER, LINK, when(self.copied[0]), when(self.copied[1]))
        compute = Lane(COMPUTE, DEVICE, when(self.computed[0]), when(self.computed[1]))
        tokens, margins = self.tokens.tolist(), self.margins.tolist()
        output = Lane(IntervalClass.OUTPUT_TRANSFER, LINK, compute.end_ns, time.perf_counter_ns())
        prepare = Lane(IntervalClass.INPUT_PREPARE, HOST, self.began, self.prepared)
        return Yield(tokens, margins, (prepare, transfer, compute, output))


class GraphRecorder:
    """Captures work on one stream; all of its graphs share the memory of their temporaries."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._pool: Any = None

    def __call__(self, work: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        with torch.inference_mode():
            with torch.cuda.stream(self._stream):
                work()  # kernels are compiled and library handles made on first use, which no capture may see
            self._stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                filled = work()
        self._pool = graph.pool()
        return graph.replay, filled


class CudaStepper:
    """Launches without waiting; batches run in order on one compute stream, their inputs come by a copy stream.

    Two stagings take turns, so that the next batch is prepared while the copy of this one may still be read.
    """

    def __init__(self, decoder: Decoder, attention: Attention, sampling: Sampling, device: torch.device) -> None:
        self._decoder = decoder
        self._attention = attention
        self._sampling = sampling
        torch.cuda.synchronize(device)  # what loading left on the default stream, which the others do not wait for
        self._compute = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stagings = [Staging(device), Staging(device)]
        self._users: list[torch.cuda.Event | None] = [None, None]
        self._turn = 0
        self._newest = torch.zeros(0, dtype=torch.int64, device=device)
        self._graphs: list[DecodeGraphs] = []
        self._anchor = self._new_anchor()
        self._last: _Running | None = None

    def capture_decodes(self, block_size: int) -> int:
        """Capture decode steps where model and attention allow it; returns how many batch sizes have a graph.

        Each staging has graphs of its own: what the host prepares for a replay is read while the next is prepared.
        """
        if not (self._decoder.capturable and isinstance(self._attention, CapturableAttention)):
            return 0
        record = GraphRecorder(self._compute)
        try:
            self._graphs = [DecodeGraphs(self._decoder, self._attention, record, block_size) for _ in self._stagings]
        except RuntimeError as reason:
            if isinstance(reason, torch.OutOfMemoryError):
                raise
            _LOG.warning("decode steps are launched kernel by kernel: capturing failed: %s", reason)
            return 0
        return len(BUCKETS)

    def launch(self, flat: FlatBatch, began: Ns) -> InFlight:
        if self._last is None or self._last.ready():
            self._anchor = self._new_anchor()  # clocks drift apart; an idle device costs nothing to ask
        turn, self._turn = self._turn, 1 - self._turn
        user = self._users[turn]
        if user is not None:
            user.synchronize()
        staging = self._stagings[turn]
        names = (*_FIELDS, *_FEEDBACK)
        placed = dict(zip(names, staging.pack([getattr(flat, name) for name in names]), strict=True))
        copied, computed, read = (_event(), _event()), (_event(), _event()), _event()
        with torch.inference_mode():
            with torch.cuda.stream(self._copies):
                copied[0].record()
                staging.copy()
                copied[1].record()
            with torch.cuda.stream(self._compute):
                copied[1].wait()
                computed[0].record()
                tokens, margins = self._forward(flat, placed, turn)
                computed[1].record()
                tokens, margins = tokens.to("cpu", non_blocking=True), margins.to("cpu", non_blocking=True)
                read.record()
        self._users[turn] = read
        prepared = time.perf_counter_ns()
        self._last = _Running(flat, began, prepared, self._anchor, copied, computed, read, tokens, margins)
        return self._last

    def host_pool(self, pages: Sequence[torch.Tensor], blocks: int) -> CudaHostPool:
        """Host blocks whose copies keep their order with this stepper's batches."""
        return CudaHostPool(pages, blocks, self._compute, lambda event: self._anchor.host_time(event))

    def _forward(
        self, flat: FlatBatch, placed: dict[str, torch.Tensor], turn: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        sampled_rows, late, late_rows = (placed.pop(name) for name in _FEEDBACK)
        if flat.late.size:  # tokens of the step before, which the host has not read yet
            placed["token_ids"].index_copy_(0, late, self._newest.index_select(0, late_rows))
        logits = self._graphs[turn].logits(flat, placed) if self._graphs else None
        if logits is None:
            cos, sin = self._decoder.angles(placed.pop("positions"))
            logits = self._decoder.forward(DeviceBatch(flat=flat, **placed, cos=cos, sin=sin), self._attention)
        if not flat.sampled.size:
            return logits.new_empty(0, dtype=torch.int64), logits.new_empty(0)
        picked = pick(logits, flat, self._sampling)
        self._remember(flat, sampled_rows, picked.tokens)
        return picked.tokens, picked.margins

    def _remember(self, flat: FlatBatch, rows: torch.Tensor, tokens: torch.Tensor) -> None:
        """Keep the newest token of each row on the device, for a step that was planned before it was read."""
        missing = int(flat.sampled_rows.max()) + 1 - self._newest.numel()
        if missing > 0:
            self._newest = torch.cat((self._newest, self._newest.new_zeros(missing)))
        self._newest.index_copy_(0, rows, tokens)

    def _new_anchor(self) -> Anchor:
        event = _event()
        with torch.cuda.stream(self._compute):
            event.record()
        event.synchronize()
        return Anchor(event, time.perf_counter_ns())


def _event() -> torch.cuda.Event:
    """A timed event on which the host sleeps instead of spinning."""
    return torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
