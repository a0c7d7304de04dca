"""What the figures of a run were made on."""

import os
import platform
from pathlib import Path

import torch


def fingerprint(device: torch.device, threads: int) -> dict[str, str | int | float]:
    """Machine, versions and thread count, as plain data."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count() or 1,
        "usable_cores": usable_cores(),
        "threads": threads,
        "isa": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),  # a class of its own, which no JSON writer need know
    }


def default_threads() -> int:
    """All usable cores but one, at least one.

    The forward's threads meet at a barrier many times a step: with as many threads as cores, any other process on
    the machine (the driver's own host work, a web server) makes all of them wait, and a step can take ten times as
    long.
    """
    return max(1, usable_cores() - 1)


def usable_cores() -> int:
    """Cores this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else (os.cpu_count() or 1)


def cpu_model() -> str:
    """Name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"
