"""Device, number format and memory: chosen by capability, refused before anything is built."""

import os
from pathlib import Path

import torch

from gpu_runner.engine.describe import ModelInfo
from gpu_runner.engine.settings import ATTENTION, DEVICES, DTYPES, EngineSettings, Sampling
from scheduler_core.types.errors import InputError, Problem

_GIB = 1024**3
_CGROUP = Path("/sys/fs/cgroup")


def check_settings(settings: EngineSettings) -> None:
    """`InputError` listing every setting that cannot be right on any machine."""
    problems = []
    choices = (("device", settings.device, DEVICES), ("dtype", settings.dtype, DTYPES))
    for name, value, known in (*choices, ("attention", settings.attention, ATTENTION)):
        if value not in known:
            problems.append(Problem(f"target.{name}", f"{value!r} is unknown; choose from {', '.join(known)}"))
    if settings.host_blocks < 0:
        problems.append(Problem("target.host_blocks", f"{settings.host_blocks} is too small; give at least 0"))
    sizes = (("kv_blocks", settings.kv_blocks), ("block_size", settings.block_size))
    for name, size in (*sizes, ("prefix_block_size", settings.prefix_block_size), ("threads", settings.threads or 1)):
        if size < 1:
            problems.append(Problem(f"target.{name}", f"{size} is too small; give at least 1"))
    problems += _sampling_problems(settings.sampling)
    if problems:
        raise InputError(problems)


def _sampling_problems(sampling: Sampling) -> list[Problem]:
    ranges = (
        ("temperature", sampling.temperature, sampling.temperature >= 0, "0 (greedy) or more"),
        ("top_k", sampling.top_k, sampling.top_k >= 0, "0 (all tokens) or more"),
        ("top_p", sampling.top_p, 0 < sampling.top_p <= 1, "more than 0 and at most 1"),
    )
    return [
        Problem(f"sampling.{name}", f"{value} is out of range; give {right}")
        for name, value, fits, right in ranges
        if not fits
    ]


def choose_device(device: str) -> torch.device:
    """CUDA where there is one, for ``auto``; `InputError` when CUDA is asked for and absent."""
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise InputError(
            [
                Problem(
                    "target.device", "'cuda' was asked for, but PyTorch sees no CUDA device here; use 'auto' or 'cpu'"
                )
            ]
        )
    return torch.device("cuda", 0) if available and device != "cpu" else torch.device("cpu")


def check_memory(settings: EngineSettings, info: ModelInfo, device: torch.device) -> None:
    """`InputError` when weights and KV pools are larger than the memory that is free now."""
    block = info.bytes_per_block(settings.block_size, settings.dtype)
    host = settings.host_blocks * block
    if device.type == "cuda":
        weights = info.weight_bytes(settings.dtype)
        _check_blocks("kv_blocks", settings.kv_blocks, block, weights, torch.cuda.mem_get_info(device)[0])
        _check_blocks("host_blocks", settings.host_blocks, block, 0, free_host_bytes())
    else:
        _check_blocks("kv_blocks", settings.kv_blocks, block, info.weight_bytes("float32") + host, free_host_bytes())


def _check_blocks(name: str, blocks: int, block_bytes: int, others: int, free: int | None) -> None:
    """``others`` are the bytes that must fit beside the blocks."""
    if free is None or blocks * block_bytes + others <= free:
        return
    most = max(0, (free - others) // block_bytes)
    message = (
        f"{blocks} blocks need {blocks * block_bytes / _GIB:.1f} GiB beside {others / _GIB:.1f} GiB of weights and "
        f"host blocks, but {free / _GIB:.1f} GiB are free; at most {most} blocks fit"
    )
    raise InputError([Problem(f"target.{name}", message)])


def free_host_bytes() -> int | None:
    """Host memory this process can still get, by the kernel's estimate and its control group; None if unknown."""
    known = [value for value in (_available(), _group_headroom()) if value is not None]
    return min(known) if known else None


def _available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return _physical()
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in fields else None


def _physical() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def _group_headroom() -> int | None:
    try:
        limit = (_CGROUP / "memory.max").read_text(encoding="ascii").strip()
        used = (_CGROUP / "memory.current").read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(limit) - int(used) if limit.isdigit() and used.isdigit() else None


def compute_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """The format arithmetic runs in: fp32 on a CPU without matrix instructions for ``dtype``.

    There the half formats would run several times slower than fp32; KV pages keep ``dtype`` all the same.
    """
    wanted: torch.dtype = getattr(torch, dtype)
    if device.type == "cuda" or wanted is torch.float32:
        return wanted
    fast = {
        torch.bfloat16: ("_is_avx512_bf16_supported", "_is_amx_tile_supported"),
        torch.float16: ("_is_amx_fp16_supported",),
    }[wanted]
    return wanted if any(getattr(torch.cpu, name, bool)() for name in fast) else torch.float32
