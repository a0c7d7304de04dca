import time
from collections.abc import Callable

import numpy as np
import pytest
import torch

from gpu_runner.engine import device
from gpu_runner.engine import executor as executor_module
from gpu_runner.engine.cuda import Array, Staging
from gpu_runner.engine.describe import describe
from gpu_runner.engine.device import check_memory, compute_dtype
from gpu_runner.engine.errors import EngineError
from gpu_runner.engine.executor import TorchExecutor
from scheduler_core.types.errors import CallerError, InputError
from scheduler_core.types.intervals import COMPUTE, IntervalClass
from scheduler_core.types.plan import Grant, Phase, StepPlan
from scheduler_core.types.time import NS_PER_MS
from tests.engine.conftest import settings_for
from tests.engine.playing import alone, request, step


@pytest.fixture
def llama(loaded: Callable[..., TorchExecutor]) -> TorchExecutor:
    return loaded("llama")


def test_a_request_ends_at_its_true_length_and_not_before(llama: TorchExecutor) -> None:
    assert len(alone(llama, request(5, 7)).tokens) == 7


def test_lanes_follow_each_other_without_a_gap_inside_the_step(llama: TorchExecutor) -> None:
    planned = request(9, 2)
    llama.open(planned)
    result = step(llama, Grant(planned.index, 0, 0, 9, (0, 1), True, Phase.PREFILL))
    llama.close(planned.index)
    kinds = [lane.kind for lane in result.lanes]
    assert kinds == [IntervalClass.INPUT_PREPARE, COMPUTE, IntervalClass.OUTPUT_TRANSFER, IntervalClass.STREAM_OUTPUT]
    assert [lane.start_ns for lane in result.lanes[1:]] == [lane.end_ns for lane in result.lanes[:-1]]
    assert result.lanes[0].start_ns == result.started_ns
    assert result.lanes[-1].end_ns == result.available_ns
    assert all(lane.start_ns <= lane.end_ns for lane in result.lanes)


def test_steps_complete_in_launch_order(llama: TorchExecutor) -> None:
    one, two = request(4, 1), request(4, 1)
    for planned in (one, two):
        llama.open(planned)
    for number, planned in enumerate((one, two)):
        llama.launch(StepPlan(900 + number, (Grant(planned.index, 0, 0, 4, (number,), True, Phase.PREFILL),)))
    assert [llama.wait(None).plan_id for _ in range(2)] == [900, 901]  # type: ignore[union-attr]
    for planned in (one, two):
        llama.close(planned.index)


def test_waiting_with_nothing_launched_sleeps_until_the_time(llama: TorchExecutor) -> None:
    until = llama.now_ns() + 30 * NS_PER_MS
    before = time.process_time()
    assert llama.wait(until) is None
    assert llama.now_ns() >= until
    assert time.process_time() - before < 0.02, "it must sleep, not spin"


def test_waiting_for_ever_for_nothing_is_refused(llama: TorchExecutor) -> None:
    with pytest.raises(CallerError, match="never end"):
        llama.wait(None)


def test_an_empty_plan_only_releases(llama: TorchExecutor) -> None:
    planned = request(4, 3)
    llama.open(planned)
    step(llama, Grant(planned.index, 0, 0, 4, (0,), True, Phase.PREFILL))
    result = step(llama, released=(planned.index,))
    assert result.grants == ()
    with pytest.raises(CallerError, match="KV is written to 0"):
        step(llama, Grant(planned.index, 0, 4, 1, (), True, Phase.DECODE))
    llama.close(planned.index)


def test_a_cancelled_request_may_be_closed_while_its_step_runs(llama: TorchExecutor) -> None:
    planned = request(4, 3)
    llama.open(planned)
    llama.launch(StepPlan(1, (Grant(planned.index, 0, 0, 4, (0,), True, Phase.PREFILL),)))
    llama.close(planned.index)
    result = llama.wait(None)
    assert result is not None
    assert result.grants[0].token is not None
    assert step(llama, released=(planned.index,)).failure is None


def test_the_order_of_calls_is_enforced() -> None:
    fresh = TorchExecutor(settings_for("tiny"))
    with pytest.raises(CallerError, match="start before load"):
        fresh.start()
    with pytest.raises(CallerError, match="launch before load"):
        fresh.launch(StepPlan(0, ()))
    with pytest.raises(CallerError, match="clock was not started"):
        fresh.now_ns()


def test_memory_that_runs_out_in_a_step_fails_the_step_with_a_reason(
    llama: TorchExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = request(4, 2)
    llama.open(planned)
    with monkeypatch.context() as patch:
        patch.setattr(llama._stepper, "launch", _out_of_memory)
        result = step(llama, Grant(planned.index, 0, 0, 4, (0,), True, Phase.PREFILL))
    assert result.failure is not None
    assert "memory ran out in step" in result.failure
    assert result.grants[0].token is None
    llama.close(planned.index)
    assert len(alone(llama, request(4, 2)).tokens) == 2, "the engine goes on serving others"


def test_memory_that_runs_out_while_loading_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_module, "Decoder", _out_of_memory)
    with pytest.raises(EngineError, match=r"memory ran out while loading tiny: .*allocate memory"):
        TorchExecutor(settings_for("tiny")).load()


def _out_of_memory(*_: object) -> None:
    raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes.")


def test_any_other_fault_is_not_taken_for_memory(llama: TorchExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_module, "Decoder", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        TorchExecutor(settings_for("tiny")).load()


def test_a_pool_larger_than_memory_is_refused_with_what_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """tiny: a block of 16 positions has 2 x 2 x 2 x 16 x 4 x 16 = 8,192 bytes; free are its weights and 10 blocks,
    of which those of the host take theirs.
    """
    info = describe("tiny")
    monkeypatch.setattr(device, "free_host_bytes", lambda: info.weight_bytes("float32") + 10 * 8_192)
    for host_blocks in (0, 4):
        sizes = {"block_size": 16, "host_blocks": host_blocks}
        most = 10 - host_blocks
        check_memory(settings_for("tiny", kv_blocks=most, **sizes), info, torch.device("cpu"))
        with pytest.raises(InputError, match=f"at most {most} blocks fit"):
            check_memory(settings_for("tiny", kv_blocks=most + 1, **sizes), info, torch.device("cpu"))


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"device": "tpu"}, "target.device"),
        ({"dtype": "int8"}, "target.dtype"),
        ({"attention": "magic"}, "target.attention"),
        ({"kv_blocks": 0}, "target.kv_blocks"),
        ({"block_size": 0}, "target.block_size"),
        ({"threads": -1}, "target.threads"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(change: dict[str, object], where: str) -> None:
    with pytest.raises(InputError) as caught:
        TorchExecutor(settings_for("tiny", **change))
    assert [problem.where for problem in caught.value.problems] == [where]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_asked_for_and_absent_is_refused() -> None:
    with pytest.raises(InputError, match="no CUDA device here"):
        TorchExecutor(settings_for("tiny", device="cuda"))


def test_half_formats_compute_in_fp32_where_the_processor_has_no_instructions_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported", "_is_amx_fp16_supported"):
        monkeypatch.setattr(torch.cpu, name, bool, raising=False)
    assert compute_dtype("bfloat16", torch.device("cpu")) is torch.float32
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True, raising=False)
    assert compute_dtype("bfloat16", torch.device("cpu")) is torch.bfloat16
    assert compute_dtype("float16", torch.device("cpu")) is torch.float32
    assert compute_dtype("float16", torch.device("cuda")) is torch.float16


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_formats_serve_too(dtype: str) -> None:
    executor = TorchExecutor(settings_for("tiny", dtype=dtype))
    report = executor.load()
    executor.start()
    assert report.fingerprint["dtype"] == dtype
    assert len(alone(executor, request(20, 5)).tokens) == 5


def test_near_ties_are_reported(llama: TorchExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tolerance as large as any logit distance every token is a tie; with none, none is."""
    monkeypatch.setattr(llama, "_tolerance", 1e9)
    assert set(alone(llama, request(6, 3)).ties) == {0, 1, 2}
    monkeypatch.setattr(llama, "_tolerance", 0.0)
    assert alone(llama, request(6, 3)).ties == {}


def test_the_report_says_what_was_loaded() -> None:
    executor = TorchExecutor(settings_for("tiny", threads=1))
    report = executor.load()
    info = describe("tiny")
    assert report.load_ns > 0
    assert report.device_bytes == info.weight_bytes("float32") + 24 * info.bytes_per_block(8, "float32")
    assert report.fingerprint["threads"] == 1
    assert report.fingerprint["torch"] == torch.__version__
    assert {type(value) for value in report.fingerprint.values()} <= {str, int, float}  # what every writer can write


def test_staged_arrays_arrive_unchanged_side_by_side() -> None:
    """On a CPU the twin is ordinary memory; the second packing is larger, so the buffers grow."""
    staging = Staging(torch.device("cpu"))
    for size in (3, 50):
        arrays: list[Array] = [np.arange(size, dtype=np.int64), np.arange(2 * size, dtype=np.int32).reshape(2, size)]
        placed = staging.pack(arrays)
        staging.copy()
        for array, tensor in zip(arrays, placed, strict=True):
            assert np.array_equal(tensor.numpy(), array)
            assert tensor.numpy().dtype == array.dtype
