"""One loaded model with its KV pool: runs a flat batch on the device and says where the time went."""

import time
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from gpu_runner.engine.attention.base import Attention, DeviceBatch, PoolShape
from gpu_runner.engine.attention.choosing import Pool, build_attention
from gpu_runner.engine.layout import FlatBatch
from gpu_runner.engine.model.decoder import Decoder
from gpu_runner.engine.sampling import pick
from gpu_runner.engine.settings import EngineSettings, Sampling
from scheduler_core.types.intervals import COMPUTE, DEVICE, HOST, IntervalClass, Lane
from scheduler_core.types.time import Ns


@dataclass(frozen=True, slots=True)
class Yield:
    """What one batch produced: a token and the distance of the two best logits per sampled place, and the lanes.

    Lane times are host ``perf_counter_ns``.
    """

    tokens: list[int]
    margins: list[float]
    lanes: tuple[Lane, ...]


class InFlight(Protocol):
    """A launched batch."""

    def ready(self) -> bool:
        """Whether `collect` would not block."""

    def collect(self) -> Yield:
        """Wait for the end and hand over the result."""


class Stepper(Protocol):
    """Runs flat batches in order on one device."""

    def launch(self, flat: FlatBatch, began: Ns) -> InFlight:
        """Start a batch whose host preparation began at ``began`` (host ``perf_counter_ns``)."""


@dataclass(frozen=True, slots=True)
class _Done:
    result: Yield

    def ready(self) -> bool:
        return True

    def collect(self) -> Yield:
        return self.result


class CpuStepper:
    """Computes at launch: on a CPU target the forward itself occupies the host."""

    def __init__(self, decoder: Decoder, attention: Attention, sampling: Sampling) -> None:
        self._sampling = sampling
        self._decoder = decoder
        self._attention = attention
        self._newest = np.zeros(0, np.int64)

    def launch(self, flat: FlatBatch, began: Ns) -> InFlight:
        if flat.late.size:
            flat.token_ids[flat.late] = self._newest[flat.late_rows]
        with torch.inference_mode():
            batch = device_batch(flat, self._decoder, torch.device("cpu"))
            prepared = time.perf_counter_ns()
            logits = self._decoder.forward(batch, self._attention)
            picked = pick(logits, flat, self._sampling) if flat.sampled.size else None
            computed = time.perf_counter_ns()
            tokens: list[int] = picked.tokens.tolist() if picked else []
            margins: list[float] = picked.margins.tolist() if picked else []
        self._remember(flat, tokens)
        read = time.perf_counter_ns()
        lanes = (
            Lane(IntervalClass.INPUT_PREPARE, HOST, began, prepared),
            Lane(COMPUTE, DEVICE, prepared, computed),
            Lane(IntervalClass.OUTPUT_TRANSFER, HOST, computed, read),
        )
        return _Done(Yield(tokens, margins, lanes))

    def _remember(self, flat: FlatBatch, tokens: list[int]) -> None:
        """Keep the newest token of each row, for a step that was planned before it was known."""
        if not tokens:
            return
        needed = int(flat.sampled_rows.max()) + 1
        if needed > self._newest.size:
            self._newest = np.concatenate((self._newest, np.zeros(needed, np.int64)))
        self._newest[flat.sampled_rows] = tokens


def device_batch(flat: FlatBatch, decoder: Decoder, device: torch.device) -> DeviceBatch:
    """``flat`` with its arrays on ``device``."""

    def put(name: str) -> torch.Tensor:
        held = torch.from_numpy(getattr(flat, name))
        return held if device.type == "cpu" else held.to(device)

    cos, sin = decoder.angles(put("positions"))
    return DeviceBatch(
        flat=flat,
        token_ids=put("token_ids"),
        slots=put("slots"),
        starts=put("starts"),
        contexts=put("contexts"),
        tables=put("tables"),
        sampled=put("sampled"),
        cos=cos,
        sin=sin,
    )


def build_pool(settings: EngineSettings, decoder: Decoder, threads: int) -> Attention:
    """The KV pool of ``settings`` for ``decoder``, on its device; `InputError` when the backend asked for cannot."""
    config = decoder.config
    shape = PoolShape(
        layers=config.layers,
        blocks=settings.kv_blocks,
        block_size=settings.block_size,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
    )
    kv_dtype: torch.dtype = getattr(torch, settings.dtype)
    return build_attention(Pool(shape, decoder.dtype, kv_dtype, decoder.device, threads), settings.attention)
