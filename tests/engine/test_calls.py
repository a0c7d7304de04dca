"""Kernels that are called together do what they do one by one."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from gpu_runner.engine.executor import TorchExecutor
from gpu_runner.engine.model import decoder
from gpu_runner.engine.native.calls import Kernel, together
from gpu_runner.engine.native.compiled import UnavailableError, library
from gpu_runner.engine.settings import EngineSettings
from tests.engine.direct import last_logits
from tests.engine.playing import alone, request

try:
    library()
except UnavailableError as missing:
    pytest.skip(str(missing), allow_module_level=True)


class Given(ctypes.Structure):
    """What the kernels of these tests are given."""

    _fields_ = [("number", ctypes.c_int)]


def kernel(name: str, function: Callable[[int], object], *, status: int = 0) -> Kernel:
    """A kernel that is Python's own ``function(number)``, and says ``status``."""
    made = object.__new__(Kernel)

    def call(given: Any) -> int:
        function(given[0].number)
        return status

    called = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Given))(call)
    made._function, made.name, made.address = called, name, ctypes.cast(called, ctypes.c_void_p).value
    return made


def test_calls_are_made_in_their_order_when_the_block_ends() -> None:
    """A structure may be given again at once: what it said is kept."""
    seen: list[int] = []
    double, negate = (
        kernel("double", lambda n: seen.append(2 * n)),
        kernel("negate", lambda n: seen.append(-n)),
    )
    given = Given(1)
    with together():
        double(given)
        given.number = 5
        negate(given)
        assert seen == []
    assert seen == [2, -5]
    double(given)
    assert seen == [2, -5, 10]


def test_a_failing_kernel_is_named_and_ends_the_calls() -> None:
    seen: list[int] = []
    good, bad = kernel("good", lambda n: seen.append(n)), kernel("bad", lambda n: None, status=1)
    with pytest.raises(MemoryError, match="bad could not allocate"), together():
        good(Given(1))
        bad(Given(2))
        good(Given(3))
    assert seen == [1]
    with pytest.raises(MemoryError, match="bad could not allocate"):
        bad(Given(2))


def test_a_block_inside_a_block_is_refused() -> None:
    seen: list[int] = []
    good = kernel("good", lambda n: seen.append(n))
    with together():
        good(Given(1))
        with pytest.raises(RuntimeError, match="already put off"), together():
            pass
        good(Given(2))
        assert seen == []
    assert seen == [1, 2]


def test_a_block_that_fails_puts_nothing_off_any_more() -> None:
    seen: list[int] = []
    good = kernel("good", lambda n: seen.append(n))
    with pytest.raises(ZeroDivisionError), together():
        good(Given(1))
        raise ZeroDivisionError
    good(Given(2))
    assert seen == [2]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_answers_the_same_bits_either_way(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens and how sure each was, of prompts in chunks and of decodes; that calls are put off is looked at too."""
    blocks = 0

    @contextmanager
    def counted() -> Iterator[None]:
        nonlocal blocks
        blocks += 1
        with together():
            yield

    settings = EngineSettings(model="demo-s", device="cpu", dtype=dtype, threads=1, kv_blocks=64)
    executor = TorchExecutor(settings)
    executor.load()
    executor.start()
    planned = request(75, 9, seed=3)
    monkeypatch.setattr(decoder, "together", counted)
    answers = [alone(executor, planned, chunk=40)]
    if blocks == 0:
        pytest.skip("no kernels that may be put off: this machine has no AMX tiles")
    assert blocks >= 10  # two chunks and at least eight decodes
    monkeypatch.setattr(decoder, "together", nullcontext)
    answers.append(alone(executor, planned, chunk=40))
    assert answers[0] == answers[1] and len(answers[0].tokens) == 9


def test_chunks_have_the_same_logits_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = request(75, 1, seed=3)
    put_off = last_logits("demo-s", planned, chunk=40, dtype=torch.bfloat16)
    monkeypatch.setattr(decoder, "together", nullcontext)
    assert torch.equal(put_off, last_logits("demo-s", planned, chunk=40, dtype=torch.bfloat16))
