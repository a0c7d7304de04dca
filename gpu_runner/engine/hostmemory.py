"""How this process treats host memory, set once before serving."""

import ctypes
import gc
import sys
from collections.abc import Iterator
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEEP_BYTES = 1 << 30
_MADV_COLLAPSE = 25
_HUGE_PAGE = 2 << 20


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
    """Make what is loaded so far ready for serving: it lives until the process ends.

    The garbage collector passes it over from now on, and it lies on huge pages. Every step walks through all weights,
    and in between through the interpreter's own memory; on small pages each of thousands of page walks costs up to a
    microsecond in a virtual machine, a quarter of a step's time.
    """
    gc.collect()
    gc.freeze()
    join_pages()


def join_pages() -> int:
    """Put this process's private memory on huge pages where the kernel can (Linux 6.1 and newer); bytes asked for.

    Asking costs a copy of what is not there yet, about a second per GiB; a refusal costs nothing and changes nothing.
    """
    if not sys.platform.startswith("linux"):
        return 0
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    asked = 0
    for begin, end in _private_ranges():
        begin, end = -(-begin // _HUGE_PAGE) * _HUGE_PAGE, end // _HUGE_PAGE * _HUGE_PAGE
        if begin < end and madvise(begin, end - begin, _MADV_COLLAPSE) == 0:
            asked += end - begin
    return asked


def _private_ranges() -> Iterator[tuple[int, int]]:
    """Address ranges of anonymous writable memory, the heap included."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        span, rights, _offset, _device, _inode, *name = line.split(maxsplit=5)
        if rights == "rw-p" and (not name or name[0] == "[heap]"):
            begin, end = span.split("-")
            yield int(begin, 16), int(end, 16)
