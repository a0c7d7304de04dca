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
from gpu_runner.engine.model import decoder as decoder_module
from gpu_runner.engine.model.decoder import Decoder
from gpu_runner.engine.model.mlp import groups_experts
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


def mixture(decoder: Decoder, *, grouped: bool, monkeypatch: pytest.MonkeyPatch, normalise: bool = True) -> Decoder:
    """A mixture of six experts, two for each token, in one form or the other; PyTorch has grouped products on CPUs."""
    monkeypatch.setattr(decoder_module, "groups_experts", lambda *_: grouped)
    config = replace(decoder.config, experts=Experts(count=6, active=2, width=48, normalise=normalise))
    return Decoder(config, SeededWeights(0, config.layers), torch.float32, CPU)


def test_a_mixture_is_captured_where_its_experts_are_grouped(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """One expert after the other, the host reads who was chosen, in the middle of a forward."""
    assert decoder.capturable
    assert mixture(decoder, grouped=True, monkeypatch=monkeypatch).capturable
    assert not mixture(decoder, grouped=False, monkeypatch=monkeypatch).capturable


@pytest.mark.parametrize("normalise", [True, False])
def test_replays_of_grouped_experts_give_what_one_after_the_other_gives(
    decoder: Decoder, normalise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is chosen, and whatever the padding chooses: the recorded shapes depend on the bucket alone."""
    apart = mixture(decoder, grouped=False, monkeypatch=monkeypatch, normalise=normalise)
    grouped = mixture(decoder, grouped=True, monkeypatch=monkeypatch, normalise=normalise)
    assert grouped.weight_bytes == apart.weight_bytes
    plain, captured = pool_of(apart), pool_of(grouped)
    graphs = DecodeGraphs(grouped, captured, recorded, BLOCK_SIZE)
    for contexts in ([5, 20, 48, 1, 17, 30], [6, 21], [33, 2, 47, 40, 16, 15, 14, 32], [7]):
        flat = decode_of(contexts)
        with torch.inference_mode():
            expected = apart.forward(device_batch(flat, apart, CPU), plain)
            logits = graphs.logits(flat, inputs_of(flat))
        assert logits is not None
        assert (logits - expected).abs().max() < 0.05


@pytest.mark.parametrize("tokens", [1, 2, 7, 40])
def test_grouped_experts_compute_the_mixture(decoder: Decoder, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One layer against one expert after the other, also where some expert gets no token; a token gets the same in
    any company.
    """
    forms = [mixture(decoder, grouped=grouped, monkeypatch=monkeypatch) for grouped in (False, True)]
    torch.manual_seed(tokens)
    normed = torch.randn(tokens, decoder.config.hidden)
    outputs = []
    for form in forms:
        hidden = torch.zeros_like(normed)
        form._layers[0].mlp.add_to(hidden, normed, form.workspace())
        outputs.append(hidden)
    assert (outputs[0] - outputs[1]).abs().max() < 1e-5 * outputs[0].abs().max()
    alone = torch.zeros(1, decoder.config.hidden)
    forms[1]._layers[0].mlp.add_to(alone, normed[:1], forms[1].workspace())
    assert (alone - outputs[1][:1]).abs().max() < 1e-5 * outputs[0].abs().max()


@pytest.mark.parametrize(
    ("hidden", "width", "dtype", "capability", "grouped"),
    [
        (128, 64, torch.bfloat16, (9, 0), True),
        (128, 64, torch.bfloat16, (8, 9), False),
        (128, 64, torch.float16, (9, 0), False),
        (128, 63, torch.bfloat16, (9, 0), False),
    ],
)
def test_where_experts_are_grouped(
    hidden: int,
    width: int,
    dtype: torch.dtype,
    capability: tuple[int, int],
    grouped: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    assert groups_experts(hidden, width, dtype, torch.device("cuda")) is grouped
    assert not groups_experts(hidden, width, dtype, CPU)
