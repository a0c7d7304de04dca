"""Products of activations with packed weights on AMX tiles, beside double precision and beside themselves."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import silu

from gpu_runner.engine.model.choosing import build_gate, build_linear
from gpu_runner.engine.model.elementwise import TorchElementwise
from gpu_runner.engine.model.parts import PackedLinear, PlainLinear, TwoStepGate, Workspace
from gpu_runner.engine.model.tiled import TiledGate, TiledLinear
from gpu_runner.engine.native.compiled import UnavailableError

CPU = torch.device("cpu")
FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}
"""Largest relative error of rounding to the nearest."""


def tiles_missing() -> bool:
    try:
        TiledLinear(torch.zeros(32, 32), None, 1)
    except UnavailableError:
        return True
    return False


needs_tiles = pytest.mark.skipif(tiles_missing(), reason="this machine has no AMX tiles, or no C compiler")


def drawn(seed: int, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_near(got: torch.Tensor, expected: torch.Tensor, sizes: torch.Tensor, inputs: int) -> None:
    """``sizes``: the sum of the terms' absolute values, which errors of summing in fp32 are measured by.

    A sum of n terms is off by at most n roundings of it (Higham, Accuracy and Stability, 4.2), and by one rounding of
    the result to its own format.
    """
    allowed = (inputs + 8) * 2.0**-24 * sizes + ROUNDING[got.dtype] * expected.abs()
    assert (got.double() - expected).abs().sub(allowed).max() <= 0


sizes = st.tuples(
    st.integers(1, 150), st.integers(1, 40).map(lambda steps: 32 * steps), st.integers(1, 130), st.integers(0, 2**20)
)


@needs_tiles
@settings(max_examples=40, deadline=None)
@given(sizes, st.sampled_from(sorted(FORMATS)), st.booleans(), st.sampled_from([1, 2]))
def test_a_product_is_right_for_any_shape(
    shape: tuple[int, int, int, int], name: str, biased: bool, threads: int
) -> None:
    rows, inputs, outputs, seed = shape
    dtype = FORMATS[name]
    values, weight = drawn(seed, rows, inputs, dtype=dtype), drawn(seed + 1, outputs, inputs, dtype=dtype)
    bias = drawn(seed + 2, outputs, dtype=dtype) if biased else None
    added = drawn(seed + 3, rows, outputs, dtype=dtype)
    linear = TiledLinear(weight, bias, threads)

    offset = bias.double() if bias is not None else torch.zeros(outputs, dtype=torch.float64)
    expected = values.double() @ weight.double().t() + offset
    terms = values.double().abs() @ weight.double().abs().t() + offset.abs()
    assert_near(linear(values), expected, terms, inputs)
    assert_near(linear.widened(values), expected, terms, inputs)
    target = added.clone()
    linear.add_to(target, values)
    assert_near(target, added.double() + expected, terms + added.double().abs(), inputs)


@needs_tiles
@settings(max_examples=25, deadline=None)
@given(sizes, st.sampled_from(sorted(FORMATS)), st.booleans())
def test_a_gate_is_right_for_any_shape(shape: tuple[int, int, int, int], name: str, biased: bool) -> None:
    rows, inputs, halves, seed = shape
    width, dtype = 32 * (halves // 32 + 1), FORMATS[name]
    values, weight = drawn(seed, rows, inputs, dtype=dtype), drawn(seed + 1, 2 * width, inputs, dtype=dtype)
    weight *= inputs**-0.5
    bias = drawn(seed + 2, 2 * width, dtype=dtype) if biased else None
    both = values.double() @ weight.double().t() + (bias.double() if bias is not None else 0.0)
    expected = silu(both[:, :width]) * both[:, width:]

    got = TiledGate(weight, bias, 1)(values, Workspace(dtype, CPU))

    torch.testing.assert_close(got.double(), expected, rtol=4 * ROUNDING[dtype], atol=2e-5)


FEW_ROWS = 14
"""Up to which fp32 is multiplied by vectors, which add in another order than tiles."""


@needs_tiles
@settings(max_examples=30, deadline=None)
@given(sizes, st.sampled_from(sorted(FORMATS)), st.data())
def test_a_row_has_the_same_bits_in_any_batch(shape: tuple[int, int, int, int], name: str, data: st.DataObject) -> None:
    rows, inputs, outputs, seed = shape
    dtype = FORMATS[name]
    values, weight = drawn(seed, rows, inputs, dtype=dtype), drawn(seed + 1, outputs, inputs, dtype=dtype)
    first = data.draw(st.integers(0, rows - 1))
    last = data.draw(st.integers(first + 1, rows))
    whole, part = TiledLinear(weight, None, 1)(values), TiledLinear(weight, None, 2)(values[first:last])
    if dtype is torch.bfloat16 or (rows > FEW_ROWS) == (last - first > FEW_ROWS):
        assert torch.equal(part, whole[first:last])
    else:
        torch.testing.assert_close(part, whole[first:last], rtol=0, atol=2.0**-20 * inputs)


@needs_tiles
@pytest.mark.parametrize("name", sorted(FORMATS))
def test_no_rows_have_no_product(name: str) -> None:
    linear = TiledLinear(torch.ones(64, 32, dtype=FORMATS[name]), None, 2)
    assert linear(torch.empty(0, 32, dtype=FORMATS[name])).shape == (0, 64)


@needs_tiles
@pytest.mark.parametrize("rows", [1, 8, 14, 24, 96, 160])
def test_fp32_is_as_near_as_products_in_fp32(rows: int) -> None:
    """Parts of eight bits lose nothing that counts: the error is no larger than that of PyTorch's fp32 product.

    Values over six orders of magnitude, so that a part that went missing would be seen beside small neighbours.
    """
    scales = 10.0 ** torch.linspace(-3, 3, 1024)
    values = drawn(1, rows, 1024, dtype=torch.float32) * scales
    weight = drawn(2, 64, 1024, dtype=torch.float32) / scales
    expected = values.double() @ weight.double().t()
    ours = (TiledLinear(weight, None, 1)(values).double() - expected).norm()
    theirs = (torch.mm(values, weight.t()).double() - expected).norm()
    assert ours <= 2 * theirs


@needs_tiles
@pytest.mark.parametrize("inputs", [32, 928, 4864])
@pytest.mark.parametrize("rows", [14, 15, 40, 90, 600])
def test_exact_numbers_are_exact(inputs: int, rows: int) -> None:
    """Whole numbers: products of 13 by 2 bits, sums of which stay below 2^24, where fp32 holds each."""
    values = torch.zeros(rows, inputs)
    values[:, ::32] = torch.randint(-4095, 4096, (rows, len(range(0, inputs, 32)))).float()
    weight = torch.randint(-3, 4, (48, inputs)).float()
    assert torch.equal(TiledLinear(weight, None, 1)(values), torch.mm(values.double(), weight.double().t()).float())


@needs_tiles
@pytest.mark.parametrize(
    ("weight", "reason"),
    [
        (torch.zeros(32, 48), "48 inputs are no multiple of 32"),
        (torch.zeros(32, 32, dtype=torch.float16), "no product on tiles for torch.float16"),
    ],
)
def test_what_tiles_cannot_do_is_said(weight: torch.Tensor, reason: str) -> None:
    with pytest.raises(UnavailableError, match=reason):
        TiledLinear(weight, None, 1)
    assert isinstance(build_linear(weight), PlainLinear)


def test_without_compiled_kernels_pytorch_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_here() -> None:
        raise UnavailableError("switched off")

    monkeypatch.setattr("gpu_runner.engine.model.tiled.has_amx", none_here)
    make: Callable[..., object] = build_linear
    assert isinstance(make(torch.zeros(32, 32)), PlainLinear)
    assert isinstance(make(torch.zeros(32, 32, dtype=torch.bfloat16)), PackedLinear)
    assert isinstance(build_gate(torch.zeros(64, 32), None, TorchElementwise()), TwoStepGate)
