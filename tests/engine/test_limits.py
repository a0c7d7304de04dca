"""What `bench.engine` holds against the physical limits: operations and bytes by hand, time accounted in full."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.engine import play, requests
from bench.limits import figures
from bench.limits.operations import Work, of_grants, of_requests, operations, step_bytes
from bench.limits.spent import timed, watched
from gpu_runner.engine.config import Experts, ModelConfig
from gpu_runner.engine.describe import describe
from gpu_runner.engine.executor import TorchExecutor
from gpu_runner.engine.model import decoder
from gpu_runner.engine.model.parts import PackedLinear, PlainLinear
from gpu_runner.engine.model.weights import SeededWeights
from gpu_runner.engine.references import resolve
from gpu_runner.engine.settings import EngineSettings
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.plan import Grant, Phase

CONFIG = ModelConfig(
    family="llama",
    layers=2,
    hidden=8,
    heads=2,
    kv_heads=1,
    head_dim=4,
    intermediate=16,
    vocab_size=10,
    model_length=64,
)


def _request(prompt: int, output: int) -> PlannedRequest:
    return PlannedRequest(0, 0, prompt, output, output, seed=0)


def _grant(start: int, length: int, *, samples: bool) -> Grant:
    return Grant(0, 0, start, length, (), samples, Phase.PREFILL)


def test_operations_of_a_prompt() -> None:
    """Three tokens, the last one sampled.

    Weights: queries, keys and values 8 x (8 + 2 x 4) = 128; output 8 x 8 = 64, SwiGLU 3 x 8 x 16 = 384, together 448;
    output layer 8 x 10 = 80. The first layer multiplies 3 x (128 + 448) = 1,728, the second 3 x 128 + 448 = 832, the
    output layer 80: 2,640, twice for the additions. Attention: 4 x 8 for each pair, 1 + 2 + 3 in the first layer and 3
    in the second: 288.
    """
    work = of_grants([_grant(0, 3, samples=True)])
    assert work == Work(tokens=3, sampled=1, pairs=6, sampled_pairs=3)
    assert operations(CONFIG, work) == 2 * 2640 + 288


def test_a_chunk_that_samples_nothing_stops_at_the_last_keys() -> None:
    """1,728 + 384 products and the first layer's 6 pairs."""
    assert operations(CONFIG, of_grants([_grant(0, 3, samples=False)])) == 2 * (1728 + 384) + 4 * 8 * 6


def test_a_token_meets_its_experts_alone() -> None:
    """The router's 8 x 5 weights and two of five experts, 3 x 8 x 6 each: 328 in place of 384; layer 1 stays dense."""
    experts = Experts(count=5, active=2, width=6, normalise=True, dense_layers=frozenset({1}))
    work = Work(tokens=1, sampled=1)
    dense = operations(CONFIG, work)
    assert operations(replace(CONFIG, experts=experts), work) == dense - 2 * (384 - 328)


@given(st.integers(1, 40), st.integers(1, 20), st.lists(st.integers(1, 9), max_size=8))
def test_a_request_is_the_sum_of_its_steps(prompt: int, output: int, chunks: list[int]) -> None:
    total, start = Work(), 0
    for chunk in [*chunks, prompt]:
        length = min(chunk, prompt - start)
        if length:
            total += of_grants([_grant(start, length, samples=start + length == prompt)])
            start += length
    for emitted in range(output - 1):
        total += of_grants([_grant(prompt + emitted, 1, samples=True)])
    assert total == of_requests([_request(prompt, output)])


def test_bytes_of_a_decode_step() -> None:
    """Tiny: vocabulary 512, hidden 64, not tied, so 32,768 weights of the embedding are not read."""
    info = describe("tiny")
    config = resolve("tiny")
    read = 4 * (info.parameters - 32_768)
    assert step_bytes(config, info, "float32") == read
    executor = TorchExecutor(EngineSettings(model="tiny", device="cpu", threads=1, kv_blocks=16))
    executor.load()
    assert executor.step_bytes == read
    tied = replace(config, tied=True)
    assert step_bytes(tied, info, "float32") == 4 * info.parameters


@pytest.mark.parametrize(("linear", "copies"), [(PlainLinear, 1), (PackedLinear, 2)])
def test_a_packed_output_layer_is_there_besides_its_embedding(
    linear: type[PlainLinear | PackedLinear], copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiny, tied: a step reads all weights, of which the 512 x 64 of the embedding are there once or twice."""
    monkeypatch.setattr(decoder, "build_linear", lambda weight, bias=None, *, threads: linear(weight, bias))
    config, cpu = replace(resolve("tiny"), tied=True), torch.device("cpu")
    built = decoder.Decoder(config, SeededWeights(0, config.layers), torch.float32, cpu)
    assert built.weight_bytes == built.step_bytes + (copies - 1) * 4 * 512 * 64


def test_most_over_a_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """At as many operations a second as the traffic has, it takes one second: 4 tokens a second over 2 are twice."""
    traffic = [_request(5, 4)]
    rate = operations(resolve("tiny"), of_requests(traffic))
    monkeypatch.setattr(figures, "gemm_rate", lambda dtype: float(rate))
    assert figures.most_over("tiny", "float32", traffic, 2.0) == 2.0


def test_time_is_accounted_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "gemm_rate", lambda dtype, rows=None: 1e9)
    monkeypatch.setattr(figures, "read_bandwidth", lambda: 1e12)
    monkeypatch.setattr(figures, "read_bandwidth_bytes_per_s", lambda: 1e11)
    traffic = requests(4, share=0.1)
    settings = EngineSettings(model="tiny", device="cpu", threads=1, kv_blocks=160)

    def serve(executor: TorchExecutor) -> object:
        return play(executor, traffic, size=4)

    step_ns = figures.decode_step_ns(timed(settings), 4, serve)
    with watched(settings) as executor:
        found = figures.of_engine(executor, "T", 4, serve, step_ns)
        play(executor, traffic, size=4)
        steps = executor.take()
    assert found["limit_of_decode_T"] == "arithmetic"
    assert found["share_of_plain_limit_decode_T"] == found["share_of_limit_decode_T"]  # weights in their own format
    assert found["decode_step_cpu_ms_T"] >= step_ns / 1e6 - 0.001 > 0  # and what lies between two steps
    for name in ("decode_step_share_T", "prompt_step_share_T"):
        shares = found[name]
        assert set(shares) == {"products", "attention", "other_device_work", "host"}
        assert min(shares.values()) >= 0 and sum(shares.values()) == pytest.approx(1, abs=0.003)
    for step in steps:
        assert 0 < step.device_ns <= step.engine_ns and min(step.parts.values()) > 0
    assert sum(len(step.plan.grants) for step in steps if not step.has_prompt) > 0
