"""The engine as the driver sees it: `TorchExecutor` implements `scheduler_core.drive.ports.Executor`."""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from gpu_runner.engine.attention.base import Attention
from gpu_runner.engine.describe import describe
from gpu_runner.engine.device import check_memory, check_settings, choose_device, compute_dtype
from gpu_runner.engine.errors import EngineError
from gpu_runner.engine.fingerprint import default_threads, fingerprint
from gpu_runner.engine.hostmemory import keep_freed_memory, settle
from gpu_runner.engine.hostpool import Copied, Copying, CpuHostPool, HostPool, check_copies
from gpu_runner.engine.instance import CpuStepper, InFlight, Stepper, Yield, build_pool
from gpu_runner.engine.layout import FlatBatch, flatten
from gpu_runner.engine.model.decoder import Decoder
from gpu_runner.engine.model.opening import open_weights
from gpu_runner.engine.prompts import prompt_ids
from gpu_runner.engine.references import origin, resolve
from gpu_runner.engine.rows import Granted, Rows
from gpu_runner.engine.sampling import TIE_TOLERANCE
from gpu_runner.engine.settings import EngineSettings, LoadReport
from gpu_runner.engine.threaded import ThreadedHostPool, ThreadedStepper, Worker
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.errors import CallerError
from scheduler_core.types.intervals import HOST, IntervalClass, Lane
from scheduler_core.types.plan import Grant, GrantResult, Phase, StepPlan, StepResult
from scheduler_core.types.time import NS_PER_S, Ns

_POLL_S = 50e-6
_WARM_LENGTHS = (1, 64)
_NOTHING = GrantResult(None)


@dataclass(slots=True)
class _Launched:
    plan: StepPlan
    flat: FlatBatch | None
    granted: Granted | None
    started: Ns
    copying: Copying
    work: InFlight | None = None
    failure: str | None = None


class TorchExecutor:
    """A real transformer that executes step plans; one instance, one device.

    Use: `load`, then `start` at the beginning of the run, then the methods of the port. Output lengths are forced
    from the plan: a request ends when it has emitted ``output_tokens``, whatever the tokens are. In fp32 a greedy
    token depends on the prompt alone unless ``tie_margin`` is set on the result.

    After `load`, ``arithmetic`` names the format of weights and activations and ``attention`` the backend in use;
    ``step_bytes`` are those of the weights that a step reads.
    """

    def __init__(self, settings: EngineSettings) -> None:
        """`InputError` names each setting that is wrong or cannot be met by this machine."""
        check_settings(settings)
        self.settings = settings
        self.info = describe(settings.model)
        self._device = choose_device(settings.device)
        self._threads = settings.threads or default_threads()
        self._tolerance = TIE_TOLERANCE[settings.dtype]
        self._rows = Rows(kv_blocks=settings.kv_blocks, block_size=settings.block_size)
        self._launched: deque[_Launched] = deque()
        self._stepper: Stepper | None = None
        self._host_pool: HostPool | None = None
        self._zero: Ns | None = None
        self.arithmetic = settings.dtype
        self.attention = ""
        self.step_bytes = 0
        self._graphs = 0
        check_memory(settings, self.info, self._device)

    def load(self) -> LoadReport:
        """Build model and pool and warm them up. `InputError` for bad weights, `EngineError` when memory runs out."""
        began = time.perf_counter_ns()
        torch.set_num_threads(self._threads)
        keep_freed_memory()
        arithmetic = compute_dtype(self.settings.dtype, self._device)
        self.arithmetic = str(arithmetic).removeprefix("torch.")
        try:
            config = resolve(self.settings.model)
            weights = open_weights(self.settings.model, config, self.settings.weight_seed)
            decoder = Decoder(config, weights, arithmetic, self._device, self._threads)
            attention = build_pool(self.settings, decoder, self._threads)
            self.attention = attention.name
            self.step_bytes = decoder.step_bytes
            self._build(decoder, attention)
            self._warm()
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            raise EngineError(f"memory ran out while loading {self.settings.model}: {_first_line(error)}") from error
        marks = fingerprint(self._device, self._threads)
        marks |= {"dtype": self.settings.dtype, "arithmetic": self.arithmetic}
        marks |= {"attention": self.attention, "decode_graphs": self._graphs, "model": self.settings.model}
        marks |= origin(self.settings.model)
        return LoadReport(time.perf_counter_ns() - began, decoder.weight_bytes + attention.pool_bytes, marks)

    def start(self) -> None:
        """Set the zero of the run's clock."""
        if self._stepper is None:
            raise CallerError("start before load")
        settle()
        self._zero = time.perf_counter_ns()

    def now_ns(self) -> Ns:
        return time.perf_counter_ns() - self._origin()

    def open(self, request: PlannedRequest) -> None:
        ids = prompt_ids(request, vocab_size=self.info.vocab_size, prefix_block_size=self.settings.prefix_block_size)
        self._rows.open(request, ids)

    def tables(self) -> dict[int, tuple[int, ...]]:
        """The block table of each request that holds blocks, as the plans so far made it."""
        return self._rows.block_tables()

    def close(self, request: int) -> None:
        self._rows.close(request)

    def launch(self, plan: StepPlan) -> None:
        if self._stepper is None:
            raise CallerError("launch before load")
        began = time.perf_counter_ns()
        check_copies(plan, kv_blocks=self.settings.kv_blocks, host_blocks=self.settings.host_blocks)
        for request in plan.released:
            self._rows.release(request)
        for rebind in plan.rebinds:
            self._rows.rebind(rebind)
        granted = self._rows.apply(plan.grants) if plan.grants else None
        copying = Copied() if self._host_pool is None else self._host_pool.copy(plan)
        launched = _Launched(plan, None, granted, began, copying)
        self._launched.append(launched)
        if granted is None:
            return
        launched.flat = flatten(granted, self._rows, self.settings.block_size)
        try:
            launched.work = self._stepper.launch(launched.flat, began)
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            launched.failure = f"memory ran out in step {plan.id} of {plan.tokens} tokens: {_first_line(error)}"

    def wait(self, until_ns: Ns | None) -> StepResult | None:
        if not self._launched:
            self._sleep(until_ns)
            return None
        head = self._launched[0]
        while until_ns is not None and head.work is not None and not head.work.ready():
            if self.now_ns() >= until_ns:
                return None
            time.sleep(_POLL_S)
        self._launched.popleft()
        return self._result(head)

    def _build(self, decoder: Decoder, attention: Attention) -> None:
        """What runs batches, and the host's blocks where there are some."""
        blocks, sampling = self.settings.host_blocks, self.settings.sampling
        if self._device.type == "cuda":
            from gpu_runner.engine.cuda import CudaStepper

            stepper = CudaStepper(decoder, attention, sampling, self._device)
            self._host_pool = stepper.host_pool(attention.pages, blocks)
            self._graphs = stepper.capture_decodes(self.settings.block_size) if self.settings.decode_graphs else 0
            self._stepper = stepper
            return
        self._stepper = CpuStepper(decoder, attention, sampling)
        self._host_pool = CpuHostPool(attention.pages, blocks)
        if self.settings.overlap.steps_in_flight > 1:
            worker = Worker(self._threads)
            self._stepper = ThreadedStepper(self._stepper, worker)
            self._host_pool = ThreadedHostPool(self._host_pool, worker)

    def _result(self, step: _Launched) -> StepResult:
        origin = self._origin()
        if step.work is None or step.flat is None or step.granted is None:
            copied = _shifted(step.copying.lanes(), origin)
            if step.granted is not None:
                self._rows.forget(step.granted)
            now = time.perf_counter_ns()
            nothing = (_NOTHING,) * len(step.plan.grants)
            return StepResult(step.plan.id, nothing, copied, step.started - origin, now - origin, step.failure)
        work = step.work.collect()
        grants = self._emit(step.granted, step.flat, work)
        copied = step.copying.lanes()
        available = time.perf_counter_ns()
        streamed = Lane(IntervalClass.STREAM_OUTPUT, HOST, work.lanes[-1].end_ns, available)
        lanes = _shifted((*copied, *work.lanes, streamed), origin)
        return StepResult(step.plan.id, grants, lanes, step.started - origin, available - origin)

    def _emit(self, granted: Granted, flat: FlatBatch, work: Yield) -> tuple[GrantResult, ...]:
        sampled, tolerance = flat.sampled_grants, self._tolerance
        tokens = np.array(work.tokens, np.int64)
        done = self._rows.emit(granted.rows[sampled], granted.openings[sampled], tokens).tolist()
        ties = [margin if margin < tolerance else None for margin in work.margins]
        results: list[GrantResult] = [_NOTHING] * len(granted.rows)
        for place, answer in zip(sampled.tolist(), map(GrantResult, work.tokens, done, ties), strict=True):
            results[place] = answer
        return tuple(results)

    def _sleep(self, until_ns: Ns | None) -> None:
        if until_ns is None:
            raise CallerError("wait for a completion with nothing launched would never end")
        while (left := until_ns - self.now_ns()) > 0:
            time.sleep(left / NS_PER_S)

    def _warm(self) -> None:
        """Run a few batches in block 0, which no request owns yet, so that the first step pays for no set-up."""
        assert self._stepper is not None  # set by load
        positions = min(self.settings.kv_blocks * self.settings.block_size, self.info.model_length)
        blocks = tuple(range(self.settings.kv_blocks))
        for length in _WARM_LENGTHS:
            length = min(length, positions)
            rows = Rows(kv_blocks=self.settings.kv_blocks, block_size=self.settings.block_size)
            request = PlannedRequest(0, 0, length, 1, 1, 0)
            rows.open(request, prompt_ids(request, vocab_size=self.info.vocab_size, prefix_block_size=1))
            needed = blocks[: -(-length // self.settings.block_size)]
            grant = Grant(0, 0, 0, length, needed, samples=True, phase=Phase.PREFILL)
            flat = flatten(rows.apply((grant,)), rows, self.settings.block_size)
            self._stepper.launch(flat, time.perf_counter_ns()).collect()

    def _origin(self) -> Ns:
        if self._zero is None:
            raise CallerError("the run's clock was not started")
        return self._zero


def _shifted(lanes: Iterable[Lane], origin: Ns) -> tuple[Lane, ...]:
    return tuple([Lane(kind, resource, begin - origin, end - origin) for kind, resource, begin, end in lanes])


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "allocate memory" in str(error)


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
