"""Memory of kernels: tensors cut from shared mappings."""

import gc
import mmap
from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_runner.engine.native import memory


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 20 << 20), min_size=1, max_size=12))
def test_tensors_are_zero_begin_at_pages_and_share_no_byte(sizes: list[int]) -> None:
    """Small ones come from one mapping, large ones have their own, and some need a new mapping."""
    tensors = [memory.zeros((size,), torch.uint8) for size in sizes]
    assert all(tensor.data_ptr() % mmap.PAGESIZE == 0 for tensor in tensors)
    assert not any(bool(tensor[:4096].any()) or bool(tensor[-4096:].any()) for tensor in tensors)
    ranges = sorted((tensor.data_ptr(), tensor.data_ptr() + size) for tensor, size in zip(tensors, sizes, strict=True))
    assert all(end <= begin for (_, end), (begin, _) in pairwise(ranges))


def test_a_tensor_has_its_shape_and_format() -> None:
    tensor = memory.zeros((3, 5, 7), torch.bfloat16)
    assert tensor.shape == (3, 5, 7)
    assert tensor.dtype is torch.bfloat16


def test_a_tensor_outlives_those_cut_beside_it() -> None:
    before, kept = memory.zeros((1000,), torch.float32), memory.zeros((1000,), torch.float32)
    kept.fill_(7)
    del before
    others = [memory.zeros((9 << 20,), torch.uint8) for _ in range(8)]  # until the shared mapping was changed
    gc.collect()
    for other in others:
        other.fill_(1)
    assert bool((kept == 7).all())
