"""Calls of compiled kernels, made at once or put off and made together.

A model's weights, while they stream through a processor's caches, push out everything else, the interpreter included:
what Python does between two kernels has to come back from memory, which takes tens of microseconds. Inside `together`
kernels are only noted down, while the interpreter is still near, and then run one after the other without it.
"""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch

from gpu_runner.engine.native.compiled import library


class _Call(ctypes.Structure):
    """``struct call`` of native/calls.c."""

    _fields_ = [("make", ctypes.c_void_p), ("with_", ctypes.c_void_p)]


@dataclass(frozen=True, slots=True)
class _Noted:
    """A call that was put off, and tensors that have to be there until it is made."""

    kernel: "Kernel"
    given: ctypes.Structure
    tensors: tuple[torch.Tensor, ...]


class _PutOff(threading.local):
    """What this thread has put off, in order; None where it puts nothing off."""

    calls: list[_Noted] | None = None


_put_off = _PutOff()


class Kernel:
    """A compiled function ``int (const struct *)`` that gives 0 when it is done."""

    def __init__(self, name: str) -> None:
        """`UnavailableError` says why there are no compiled kernels."""
        self._function = getattr(library(), name)
        self.address = ctypes.cast(self._function, ctypes.c_void_p).value
        self.name = name

    def __call__(self, given: ctypes.Structure, *tensors: torch.Tensor) -> None:
        """Run on what ``given`` says, now or at the end of the block; until then ``tensors``, to which it points, stay.

        Raises:
            MemoryError: It could not allocate its scratch memory.
        """
        if _put_off.calls is not None:
            _put_off.calls.append(_Noted(self, type(given).from_buffer_copy(given), tensors))
        elif self._function(ctypes.byref(given)):
            raise MemoryError(f"{self.name} could not allocate its scratch memory")


@contextmanager
def together() -> Iterator[None]:
    """Kernels called inside run when the block ends, in their order; until then nothing of theirs may be looked at.

    Raises:
        MemoryError: One of them could not allocate its scratch memory; those after it did not run.
        RuntimeError: Inside another such block, whose order it would break.
    """
    if _put_off.calls is not None:
        raise RuntimeError("kernels are already put off here")
    calls: list[_Noted] = []
    _put_off.calls = calls
    try:
        yield
    finally:
        _put_off.calls = None
    array = (_Call * len(calls))(*(_Call(noted.kernel.address, ctypes.addressof(noted.given)) for noted in calls))
    failed = _make_calls()(array, len(calls))
    if failed:
        raise MemoryError(f"{calls[failed - 1].kernel.name} could not allocate its scratch memory")


@cache
def _make_calls() -> "ctypes._NamedFuncPointer":
    function = library().make_calls
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_int64], ctypes.c_int64
    return function
