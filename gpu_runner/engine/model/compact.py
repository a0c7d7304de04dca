"""Weights of bf16 in 12 bits each, without losing any: three quarters of the bytes that every decode step reads.

Of the 256 exponents that the format has, a weight uses few: of normally distributed numbers one in 10,000 is less than
2^-13 of the standard deviation, and none is many times it. So the 16 most frequent exponents get codes of four bits
(native/compact.h), and numbers with another one are listed. A weight with too many of those stays as it is. Of the
trained weights of SmolLM2-135M one in 10,000 is listed too, at most one in 1,900 of a matrix.
"""

import ctypes

import torch

from gpu_runner.engine.native import memory
from gpu_runner.engine.native.compiled import library

LEAST_BYTES = 1 << 20
"""Of a weight in bf16: a smaller one may stay in a core's own cache, where it is read as fast as it is expanded."""
MOST_LISTED = 1 / 256
"""Share of the weights without a code up to which reading the list costs little."""
_CODES = 16
_EXPONENTS = 256
_GROUPS, _GROUP_BYTES = 8, 192  # of a step


class _Code(ctypes.Structure):
    """``struct code`` of native/compact.h."""

    _fields_ = [
        *((name, ctypes.c_uint8 * _CODES) for name in ("upper", "lower")),
        *((name, ctypes.c_void_p) for name in ("first", "patches")),
    ]


class _Packing(ctypes.Structure):
    """``struct packing`` of native/compact.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("tiles", "packed")),
        ("place", ctypes.c_uint8 * _EXPONENTS),
        *((name, ctypes.c_void_p) for name in ("first", "patches")),
        *((name, ctypes.c_int64) for name in ("panels", "steps")),
    ]


class Compact:
    """One weight so packed, and at ``code`` what its codes mean."""

    def __init__(self, tiles: torch.Tensor, exponents: list[int], listed: int) -> None:
        """``tiles`` ``[panels, steps, 2, 16, 16, 2]``; all but ``listed`` of them have one of the ``exponents``."""
        panels, steps = tiles.shape[:2]
        self.packed = memory.zeros((panels, steps, _GROUPS, _GROUP_BYTES), torch.uint8)
        self._first = torch.zeros(panels * steps + 1, dtype=torch.int32)
        self._patches = torch.zeros(max(1, listed), 2, dtype=torch.int32)
        packing = _Packing(
            tiles=tiles.data_ptr(),
            packed=self.packed.data_ptr(),
            place=(ctypes.c_uint8 * _EXPONENTS)(*[_CODES] * _EXPONENTS),
            first=self._first.data_ptr(),
            patches=self._patches.data_ptr(),
            panels=panels,
            steps=steps,
        )
        for place, exponent in enumerate(exponents):
            packing.place[exponent] = place
        library().pack_compact(ctypes.byref(packing))
        self._code = _Code(
            upper=tuple(exponent >> 1 for exponent in exponents),
            lower=tuple((exponent & 1) << 7 for exponent in exponents),
            first=self._first.data_ptr(),
            patches=self._patches.data_ptr(),
        )
        self.code = ctypes.addressof(self._code)

    @property
    def nbytes(self) -> int:
        """Bytes of all that a product reads of it."""
        return self.packed.nbytes + self._first.nbytes + self._patches.nbytes


def compacted(tiles: torch.Tensor) -> Compact | None:
    """``tiles`` ``[panels, steps, 2, 16, 16, 2]`` of bf16 in 12 bits each, or None where that would not pay."""
    if tiles.nbytes < LEAST_BYTES:
        return None
    counts = torch.zeros(_EXPONENTS, dtype=torch.int64)
    count = ctypes.c_int64(tiles.numel())
    library().count_exponents(ctypes.c_void_p(tiles.data_ptr()), count, ctypes.c_void_p(counts.data_ptr()))
    exponents = counts.argsort(descending=True)[:_CODES]
    listed = tiles.numel() - int(counts[exponents].sum())
    if listed > tiles.numel() * MOST_LISTED:
        return None
    return Compact(tiles, exponents.tolist(), listed)
