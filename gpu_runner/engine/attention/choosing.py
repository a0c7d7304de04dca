"""Which attention backend serves a pool: the one asked for, or the fastest that works on the device."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from gpu_runner.engine.attention.base import Attention, PoolShape
from gpu_runner.engine.attention.flashinfer_paged import FlashInferAttention
from gpu_runner.engine.attention.gather import GatherAttention
from gpu_runner.engine.attention.native import NativeAttention
from gpu_runner.engine.native.compiled import UnavailableError
from scheduler_core.types.errors import InputError, Problem

_LOG = logging.getLogger(__name__)

FASTEST_FIRST = {"cpu": ("native", "gather"), "cuda": ("flashinfer", "triton", "gather")}
"""Backends by type of device."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A KV pool to be made: its sizes, the formats of activations and pages, the device and the CPU threads."""

    shape: PoolShape
    arithmetic: torch.dtype
    kv_dtype: torch.dtype
    device: torch.device
    threads: int


def build_attention(pool: Pool, wanted: str = "auto") -> Attention:
    """``wanted`` names a backend; `InputError` says why it cannot serve here. ``auto`` never fails."""
    here = FASTEST_FIRST[pool.device.type]
    if wanted != "auto" and wanted not in here:
        raise _refusal(f"{wanted!r} does not run on {pool.device.type}; choose from auto, {', '.join(here)}")
    for name in here if wanted == "auto" else (wanted,):
        try:
            return _MAKERS[name](pool)
        except UnavailableError as reason:
            if name == wanted:
                raise _refusal(f"{wanted!r} cannot be used here: {reason}") from None
            _LOG.info("attention without %s: %s", name, reason)
    raise AssertionError("gather serves every pool")


def _refusal(message: str) -> InputError:
    return InputError([Problem("target.attention", message)])


def _triton(pool: Pool) -> Attention:
    try:
        from gpu_runner.engine.attention.triton_paged import TritonAttention
    except ImportError as reason:
        raise UnavailableError(f"Triton cannot be imported: {reason}") from None
    return TritonAttention(pool.shape, pool.kv_dtype, pool.device)


_MAKERS: dict[str, Callable[[Pool], Attention]] = {
    "native": lambda pool: NativeAttention(pool.shape, pool.arithmetic, pool.kv_dtype, pool.threads),
    "flashinfer": lambda pool: FlashInferAttention(pool.shape, pool.kv_dtype, pool.device),
    "triton": _triton,
    "gather": lambda pool: GatherAttention(pool.shape, pool.kv_dtype, pool.device),
}
