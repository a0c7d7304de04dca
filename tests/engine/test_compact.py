"""Weights of bf16 in 12 bits each: nothing of them is lost, and products have the same bits as without."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_runner.engine.model import compact
from gpu_runner.engine.model.parts import Workspace
from gpu_runner.engine.model.tiled import TiledGate, TiledLinear
from gpu_runner.engine.native.compiled import UnavailableError

BF16 = torch.bfloat16
NEVER = 1 << 60
ODD = torch.tensor([0.0, -0.0, 1e-38, -2e-30, 3e38, -1e20, 1e-40, float("inf"), float("-inf"), float("nan")])
"""Numbers far from all others: zeros, exponents at both ends, one below 2^-126, and what is no number."""


def tiles_missing() -> bool:
    try:
        TiledLinear(torch.zeros(32, 32, dtype=BF16), None, 1)
    except UnavailableError:
        return True
    return False


pytestmark = pytest.mark.skipif(tiles_missing(), reason="this machine has no AMX tiles, or no C compiler")


@contextmanager
def compact_from(least_bytes: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compact, "LEAST_BYTES", least_bytes)
        patch.setattr(compact, "MOST_LISTED", 1)
        yield


def both(weight: torch.Tensor, threads: int = 1) -> tuple[TiledLinear, TiledLinear]:
    """A linear layer in 12 bits a weight, and one in 16."""
    with compact_from(0):
        small = TiledLinear(weight, None, threads)
    with compact_from(NEVER):
        large = TiledLinear(weight, None, threads)
    assert small.weight_bytes != large.weight_bytes
    return small, large


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def with_odd_numbers(weight: torch.Tensor, seed: int, count: int) -> torch.Tensor:
    """``weight`` with ``count`` of the `ODD` numbers at drawn places."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.randint(weight.numel(), (count,), generator=generator)
    weight.view(-1)[places] = ODD[torch.randint(len(ODD), (count,), generator=generator)]
    return weight


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Also where both are no number, which is equal to nothing."""
    whole = {2: torch.int16, 4: torch.int32}[first.element_size()]
    return torch.equal(first.view(whole), second.view(whole))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.one_of(st.integers(1, 150), st.sampled_from([256, 512, 700])),
    steps=st.integers(1, 40),
    outputs=st.integers(1, 130),
    odd=st.integers(0, 200),
    threads=st.sampled_from([1, 2]),
    seed=st.integers(0, 2**20),
)
def test_products_have_the_same_bits(rows: int, steps: int, outputs: int, odd: int, threads: int, seed: int) -> None:
    inputs = 32 * steps
    weight = with_odd_numbers(drawn(seed, outputs, inputs), seed, odd).to(BF16)
    values, added = drawn(seed + 1, rows, inputs).to(BF16), drawn(seed + 2, rows, outputs).to(BF16)
    small, large = both(weight, threads)
    assert same_bits(small(values), large(values))
    assert same_bits(small.widened(values), large.widened(values))
    targets = added.clone(), added.clone()
    for linear, target in zip((small, large), targets, strict=True):
        linear.add_to(target, values)
    assert same_bits(*targets)


@pytest.mark.parametrize("rows", [1, 24, 33, 100, 600])
def test_gates_have_the_same_bits(rows: int) -> None:
    weight, values = drawn(1, 192, 2080).to(BF16), drawn(2, rows, 2080).to(BF16)
    workspace, results = Workspace(BF16, torch.device("cpu")), []
    for least_bytes in (0, NEVER):
        with compact_from(least_bytes):
            results.append(TiledGate(weight, None, 1)(values, workspace).clone())
    assert same_bits(*results)


def test_every_weight_comes_back() -> None:
    """Rows of the identity give the columns of the weight: 16 exponents with a code and 30 that are listed."""
    weight = drawn(3, 160, 512) * 2.0 ** torch.randint(-1, 2, (160, 512))
    rare = torch.arange(30)
    weight[rare * 5, rare * 17] = 2.0 ** (4.0 * (rare - 25))
    weight = weight.to(BF16)
    small, _ = both(weight)
    assert torch.equal(small(torch.eye(512).to(BF16)), weight.t())


def test_it_takes_three_quarters_of_the_bytes() -> None:
    """12 of 16 bits, 4 bytes for each 1,024 weights, 8 for each listed one: of these 2^21, about 200."""
    weight = drawn(4, 1024, 2048).to(BF16)
    held = TiledLinear(weight, None, 1).weight_bytes / weight.nbytes
    assert 0.75 < held < 0.755


@pytest.mark.parametrize(
    "weight",
    [
        pytest.param(drawn(5, 64, 64), id="small enough for a cache"),
        pytest.param(2.0 ** torch.randint(-40, 40, (1024, 1024)), id="more exponents than codes"),
    ],
)
def test_where_it_would_not_pay_a_weight_stays_as_it_is(weight: torch.Tensor) -> None:
    assert TiledLinear(weight.to(BF16), None, 1).weight_bytes == 2 * weight.numel()
