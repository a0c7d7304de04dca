"""What FlashInfer is told, played on wrappers that follow its documentation: its kernels need a device."""

import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from gpu_runner.engine.attention.base import PoolShape
from gpu_runner.engine.attention.flashinfer_paged import FlashInferAttention, page_lists
from gpu_runner.engine.attention.gather import GatherAttention
from gpu_runner.engine.native.compiled import UnavailableError
from tests.engine import fake_flashinfer
from tests.engine.test_attention import batch_of

CPU = torch.device("cpu")
SHAPE = PoolShape(2, 24, 16, 8, 2, 64)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "flashinfer", fake_flashinfer)
    yield


def test_tables_become_lists_of_pages() -> None:
    """Pages of 16: contexts 1, 16, 17 and 40 need 1, 1, 2 and 3 pages, whose last hold 1, 16, 1 and 8 positions."""
    tables = np.array([[7, 0, 0], [3, 0, 0], [5, 2, 0], [9, 1, 4]], np.int32)
    lists = page_lists(np.array([1, 16, 17, 40], np.int32), tables, 16)
    assert lists.starts.tolist() == [0, 1, 2, 4, 7]
    assert lists.pages.tolist() == [7, 3, 5, 2, 9, 1, 4]
    assert lists.last.tolist() == [1, 16, 1, 8]


ROWS = [
    pytest.param([(1, 1), (1, 33), (1, 96)], id="decode"),
    pytest.param([(1, 2), (20, 20), (35, 40)], id="mixed"),
    pytest.param([(16, 16), (9, 44)], id="chunks"),
]


@pytest.mark.parametrize("rows", ROWS)
def test_every_batch_attends_as_gathered_pages_do(rows: list[tuple[int, int]]) -> None:
    mine, reference = (kind(SHAPE, torch.bfloat16, CPU) for kind in (FlashInferAttention, GatherAttention))
    tables = [list(range(at, at + 6)) for at in (11, 0, 5)][: len(rows)]
    torch.manual_seed(1)
    for _ in range(3):  # plans take turns
        batch = batch_of(rows, tables, SHAPE.block_size, SHAPE.head_dim)
        tokens = sum(length for length, _ in rows)
        for layer in range(SHAPE.layers):
            qkv = torch.randn(tokens, SHAPE.heads + 2 * SHAPE.kv_heads, SHAPE.head_dim, dtype=torch.bfloat16)
            one, two = (torch.zeros(tokens, SHAPE.heads, SHAPE.head_dim, dtype=torch.bfloat16) for _ in range(2))
            mine.attend(layer, qkv.clone(), batch, one)
            reference.attend(layer, qkv.clone(), batch, two)
            assert (one.float() - two.float()).abs().max() < 0.02
    for page, other in zip(mine.pages, reference.pages, strict=True):
        assert torch.equal(page, other)


@pytest.mark.parametrize(
    ("dtype", "head_dim", "said"),
    [(torch.float32, 64, "no kernel for torch.float32"), (torch.bfloat16, 48, "no kernel for head size 48")],
)
def test_what_it_cannot_serve_is_said(dtype: torch.dtype, head_dim: int, said: str) -> None:
    with pytest.raises(UnavailableError, match=said):
        FlashInferAttention(PoolShape(1, 4, 16, 4, 2, head_dim), dtype, CPU)


def test_kernels_that_do_not_compile_make_it_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **named: object) -> None:
        raise FileNotFoundError("nvcc")

    monkeypatch.setattr(fake_flashinfer.BatchDecodeWithPagedKVCacheWrapper, "plan", fail)
    with pytest.raises(UnavailableError, match="do not run here: nvcc"):
        FlashInferAttention(SHAPE, torch.bfloat16, CPU)


def test_absent_it_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    with pytest.raises(UnavailableError, match="cannot be imported"):
        FlashInferAttention(SHAPE, torch.bfloat16, CPU)
