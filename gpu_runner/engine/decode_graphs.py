"""Decode steps captured once per bucket of batch sizes and replayed: one launch instead of several for each layer.

A step fits when each of its rows has one token and all are sampled. It is padded to the next bucket with rows that read
and write the spare block of the attention, so they touch nothing of a request's.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import torch

from gpu_runner.engine.attention.base import CapturableAttention, FixedAttention
from gpu_runner.engine.instance import device_batch
from gpu_runner.engine.layout import FlatBatch
from gpu_runner.engine.model.decoder import Decoder
from gpu_runner.engine.model.parts import Workspace
from gpu_runner.engine.rows import Ints32

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Batch sizes with a graph of their own; at most a half of a captured step is padding."""

Recorder: TypeAlias = Callable[[Callable[[], torch.Tensor]], tuple[Callable[[], None], torch.Tensor]]
"""Captures work on the device: gives what replays it, and the tensor that each replay fills."""


class DecodeGraphs:
    """The graphs of one decoder on one pool."""

    def __init__(self, decoder: Decoder, attention: CapturableAttention, record: Recorder, block_size: int) -> None:
        """Captures every bucket, the largest first, so that the smaller ones find all memory they need."""
        width = -(-decoder.config.model_length // block_size)
        workspace = decoder.workspace()
        self._graphs: dict[int, _Graph] = {}
        for rows in sorted(BUCKETS, reverse=True):
            padding = _padding(rows, width, attention.spare_block, block_size)
            kernel = attention.fixed(rows, width)
            self._graphs[rows] = _Graph(padding, decoder, kernel, workspace, record)

    def logits(self, flat: FlatBatch, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
        """Logits ``[R, vocab]`` of a step whose arrays ``inputs`` has on the device; None for one that fits no graph.

        The tensor belongs to the graph: the next replay overwrites it.
        """
        rows = len(flat.order)
        if rows > BUCKETS[-1] or flat.singles < rows or flat.sampled.size < rows:
            return None
        bucket = next(size for size in BUCKETS if size >= rows)
        return self._graphs[bucket].replay(flat, inputs)


class _Graph:
    """One captured batch size: the tensors that it reads, and how to fill and replay it."""

    _FILLED = ("token_ids", "slots", "contexts")

    def __init__(
        self, padding: FlatBatch, decoder: Decoder, kernel: FixedAttention, workspace: Workspace, record: Recorder
    ) -> None:
        self._rows = len(padding.order)
        self._spare_slot, self._spare_block = int(padding.slots[0]), int(padding.tables[0, 0])
        self._kernel = kernel
        self._positions = torch.from_numpy(padding.positions).to(decoder.device)
        self._batch = device_batch(padding, decoder, decoder.device)
        self._live = 0

        def work() -> torch.Tensor:
            cos, sin = decoder.angles(self._positions)
            return decoder.forward(replace(self._batch, cos=cos, sin=sin), kernel, workspace)

        kernel.plan(padding.contexts, padding.tables)
        self._replay, self._logits = record(work)

    def replay(self, flat: FlatBatch, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        rows = len(flat.order)
        self._positions[:rows].copy_(inputs["positions"])
        for name in self._FILLED:
            getattr(self._batch, name)[:rows].copy_(inputs[name])
        self._batch.tables[:rows, : flat.tables.shape[1]].copy_(inputs["tables"])
        if rows < self._live:  # rows of the step before, which are padding again
            self._positions[rows:].zero_()
            self._batch.slots[rows:].fill_(self._spare_slot)
            self._batch.contexts[rows:].fill_(1)
            self._batch.tables[rows:, 0].fill_(self._spare_block)
        self._live = rows
        self._kernel.plan(*self._padded(flat))
        self._replay()
        return self._logits[:rows]

    def _padded(self, flat: FlatBatch) -> tuple[Ints32, Ints32]:
        """Contexts and tables of all rows of the graph, on the host."""
        rest = self._rows - len(flat.order)
        contexts = np.concatenate((flat.contexts, np.ones(rest, np.int32)))
        return contexts, np.pad(flat.tables, ((0, rest), (0, 0)), constant_values=self._spare_block)


def _padding(rows: int, width: int, spare_block: int, block_size: int) -> FlatBatch:
    """A batch of ``rows`` single tokens at position 0 of the spare block."""
    zeros, ones = np.zeros(rows, np.int64), np.ones(rows, np.int32)
    order, marks = np.arange(rows), np.zeros(rows, np.uint64)
    return FlatBatch(
        token_ids=zeros,
        positions=zeros.copy(),
        slots=np.full(rows, spare_block * block_size, np.int64),
        starts=np.arange(rows + 1, dtype=np.int32),
        contexts=ones,
        tables=np.full((rows, width), spare_block, np.int32),
        sampled=order,
        sampled_grants=order,
        seeds=marks,
        places=marks,
        order=order,
        singles=rows,
        sampled_rows=order,
        late=zeros[:0],
        late_rows=zeros[:0],
    )
