"""How this process treats host memory, set once before serving."""

import ctypes
import gc
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP_BYTES = 1 << 30


def keep_freed_memory() -> bool:
    """Have glibc keep large freed buffers instead of giving them back; false where there is no glibc.

    The temporaries of a prompt are megabytes: by default each one is mapped anew, and the kernel clears every page of
    it at every step.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _KEEP_BYTES) and mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES))


def settle() -> None:
    """Take everything loaded so far out of the garbage collector's rounds: it lives until the process ends."""
    gc.collect()
    gc.freeze()
