"""Captured decode steps. A CPU captures nothing: here a replay runs the recorded work again, on the same tensors.

That proves what can be wrong without a device: what a graph reads, how it is padded, and that padding touches nothing.
"""

import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from gpu_runner.engine import decode_graphs
from gpu_runner.engine.attention.base import PoolShape
from gpu_runner.engine.attention.flashinfer_paged import FlashInferAttention
from gpu_runner.engine.config import SHAPES, Experts
from gpu_runner.engine.decode_graphs import DecodeGraphs
from gpu_runner.engine.instance import device_batch
from gpu_runner.engine.layout import FlatBatch
from gpu_runner.engine.model.decoder import Decoder
from gpu_runner.engine.model.weights import SeededWeights
from tests.engine import fake_flashinfer
from tests.engine.test_attention import batch_of

CPU = torch.device("cpu")
BLOCK_SIZE = 16
BLOCKS = 24


def recorded(work: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
    """A recorder whose replays run ``work`` again into the same tensor."""
    filled = work()

    def replay() -> None:
        filled.copy_(work())

    return replay, filled


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> Decoder:
    monkeypatch.setitem(sys.modules, "flashinfer", fake_flashinfer)
    monkeypatch.setattr(decode_graphs, "BUCKETS", (1, 2, 4, 8))
    config = replace(SHAPES["tiny"], hidden=128, heads=2, kv_heads=1, head_dim=64)
    return Decoder(config, SeededWeights(0, config.layers), torch.float32, CPU)


def pool_of(decoder: Decoder) -> FlashInferAttention:
    config = decoder.config
    shape = PoolShape(config.layers, BLOCKS, BLOCK_SIZE, config.heads, config.kv_heads, config.head_dim)
    return FlashInferAttention(shape, torch.bfloat16, CPU)


def decode_of(contexts: list[int]) -> FlatBatch:
    """A decode step of rows with ``contexts``, each in three blocks of its own, all sampled."""
    tables = [list(range(3 * row, 3 * row + 3)) for row in range(len(contexts))]
    flat = batch_of([(1, context) for context in contexts], tables, BLOCK_SIZE, 64).flat
    return replace(flat, sampled=np.arange(len(contexts)))


def inputs_of(flat: FlatBatch) -> dict[str, torch.Tensor]:
    names = ("token_ids", "positions", "slots", "contexts", "tables")
    return {name: torch.from_numpy(getattr(flat, name)) for name in names}


def test_replays_give_what_launching_each_kernel_gives(decoder: Decoder) -> None:
    """Batches grow, shrink and refill their bucket: rows of an earlier step must not stay behind in the padding."""
    plain, captured = pool_of(decoder), pool_of(decoder)
    graphs = DecodeGraphs(decoder, captured, recorded, BLOCK_SIZE)
    for contexts in (
        [5, 20, 48, 1, 17, 30],
        [6, 21],
        [33, 2, 47, 40, 16, 15, 14, 32],
        [7],
        [8, 9, 10],
        [34, 3, 48, 41],
    ):
        flat = decode_of(contexts)
        with torch.inference_mode():
            expected = decoder.forward(device_batch(flat, decoder, CPU), plain)
            logits = graphs.logits(flat, inputs_of(flat))
        assert logits is not None
        assert logits.shape == expected.shape
        assert (logits - expected).abs().max() < 0.05
        for page, other in zip(captured.pages, plain.pages, strict=True):
            assert (page.float() - other.float()).abs().max() < 0.05


def test_a_padded_row_writes_into_no_block_of_the_pool(decoder: Decoder) -> None:
    pool = pool_of(decoder)
    graphs = DecodeGraphs(decoder, pool, recorded, BLOCK_SIZE)
    with torch.inference_mode():
        graphs.logits(decode_of([10, 20, 30, 40, 45]), inputs_of(decode_of([10, 20, 30, 40, 45])))
        for page in pool.pages:
            page.zero_()
        graphs.logits(decode_of([2]), inputs_of(decode_of([2])))
    for page in pool.pages:  # the one live row wrote position 1 of block 0
        assert page.flatten(0, 1).abs().sum(dim=(1, 2)).nonzero().tolist() == [[1]]


@pytest.mark.parametrize(
    "flat",
    [
        pytest.param(decode_of([4] * 7 + [5, 6]), id="more rows than the largest bucket"),
        pytest.param(replace(decode_of([4, 9]), sampled=np.arange(1)), id="a row that samples nothing"),
        pytest.param(replace(decode_of([4, 9]), singles=1), id="a chunk"),
    ],
)
def test_other_steps_fit_no_graph(decoder: Decoder, flat: FlatBatch) -> None:
    graphs = DecodeGraphs(decoder, pool_of(decoder), recorded, BLOCK_SIZE)
    assert graphs.logits(flat, inputs_of(flat)) is None


def test_only_dense_models_are_captured(decoder: Decoder) -> None:
    """Which experts a mixture of experts needs is read on the host, in the middle of a forward."""
    config = replace(SHAPES["tiny"], experts=Experts(count=2, active=1, width=32, normalise=True))
    assert decoder.capturable
    assert not Decoder(config, SeededWeights(0, config.layers), torch.float32, CPU).capturable
