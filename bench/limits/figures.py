"""The figures of one engine against the physical limits of one core."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

from bench.limits.operations import of_grants, of_requests, operations, step_bytes
from bench.limits.rates import gemm_rate_per_s, read_bandwidth_bytes_per_s
from bench.limits.spent import HOST, TimedStep, WatchedExecutor
from gpu_runner.calibrate.grid import Point
from gpu_runner.calibrate.measure import Bench
from gpu_runner.engine.references import resolve
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.shape import shape_of

CONTEXT = 360
"""Positions of each decoding request: the mean of the traffic at its whole length."""
_STEPS = 8

gemm_rate = cache(gemm_rate_per_s)
read_bandwidth = cache(read_bandwidth_bytes_per_s)


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU time of a step by part, ns, with its operations and the KV positions that its decoding requests read."""

    parts: dict[str, float]
    operations: float
    context_tokens: int = 0

    @property
    def total_ns(self) -> float:
        """The whole step's."""
        return sum(self.parts.values())

    @property
    def shares(self) -> dict[str, float]:
        """Each part's share of the whole."""
        return {part: round(taken / self.total_ns, 3) for part, taken in self.parts.items()}


def of_engine(
    executor: WatchedExecutor,
    label: str,
    batch: int,
    serve: Callable[[WatchedExecutor], object],
    step_ns: float,
) -> dict[str, Any]:
    """Shares of the limits and where the time goes, names ending in ``label``.

    ``serve`` plays the traffic: its steps with prompts are the prompt steps, and those in which all ``batch`` requests
    decode say what planning and evidence take. Decode steps are hand-made, at a context of the traffic's whole length.
    ``step_ns`` is what one takes in an engine that is not looked into, by `decode_step_ns`.
    """
    serve(executor)
    served = executor.take()
    rate = gemm_rate(executor.arithmetic)
    prompts = prompt_steps(executor, served)
    between_ns = _between_ns(served, batch)
    decode = decode_steps(executor, batch, between_ns)
    taken_ns = step_ns + between_ns
    # What else the machine does may have slowed the reading at the start; the limit is the best of both.
    bandwidth = max(read_bandwidth(), read_bandwidth_bytes_per_s())
    pages = decode.context_tokens * executor.info.bytes_per_token(executor.settings.dtype)
    plain = step_bytes(resolve(executor.settings.model), executor.info, executor.arithmetic)
    memory_ns = (executor.step_bytes + pages) / bandwidth * 1e9
    arithmetic_ns = decode.operations / gemm_rate(executor.arithmetic, batch) * 1e9
    return {
        f"share_of_limit_decode_{label}": round(memory_ns / taken_ns, 3),
        f"share_of_plain_limit_decode_{label}": round((plain + pages) / bandwidth * 1e9 / taken_ns, 3),
        f"share_of_limit_prefill_{label}": round(prompts.operations / rate * 1e9 / prompts.total_ns, 3),
        f"read_bandwidth_gb_per_s_{label}": round(bandwidth / 1e9, 1),
        f"limit_of_decode_{label}": "memory" if memory_ns > arithmetic_ns else "arithmetic",
        f"limit_of_decode_memory_ms_{label}": round(memory_ns / 1e6, 3),
        f"limit_of_decode_arithmetic_ms_{label}": round(arithmetic_ns / 1e6, 3),
        f"decode_step_cpu_ms_{label}": round(taken_ns / 1e6, 3),
        f"decode_step_share_{label}": decode.shares,
        f"prompt_step_share_{label}": prompts.shares,
    }


def most_over(model: str, dtype: str, requests: Sequence[PlannedRequest], tokens_per_cpu_s: float) -> float:
    """How many times ``tokens_per_cpu_s`` an engine would serve of ``requests`` that computes at PyTorch's best rate.

    It does every operation of `operations` at the rate of large matrices, and nothing else: no reading of weights that
    a cache does not hold, no norms, no scheduling.
    """
    seconds = operations(resolve(model), of_requests(requests)) / gemm_rate(dtype)
    return sum(request.output_tokens for request in requests) / seconds / tokens_per_cpu_s


def prompt_steps(executor: WatchedExecutor, served: Sequence[TimedStep]) -> Spent:
    """The steps of the traffic that compute prompts, from launch to launch; some of their requests decode."""
    config = resolve(executor.settings.model)
    steps = [step for step in served if step.has_prompt and step.turn_ns is not None]
    device = {part: sum(step.parts[part] for step in steps) / len(steps) for part in steps[0].parts}
    whole = sum(step.turn_ns or 0 for step in steps) / len(steps)
    computed = sum(operations(config, of_grants(step.plan.grants)) for step in steps) / len(steps)
    return Spent({**device, HOST: whole - sum(device.values())}, computed)


def decode_steps(executor: WatchedExecutor, batch: int, between_ns: float) -> Spent:
    """Where the time of `decode_step` goes; ``between_ns`` is what lies between two steps."""
    step = decode_step(executor, batch)
    computed = operations(resolve(executor.settings.model), of_grants(step.plan.grants))
    host = step.engine_ns - step.device_ns + between_ns
    return Spent({**step.parts, HOST: host}, computed, shape_of(step.plan).context_tokens)


def decode_step_ns(executor: WatchedExecutor, batch: int, serve: Callable[[WatchedExecutor], object]) -> float:
    """CPU time that the engine takes for `decode_step`, as warm as ``serve`` leaves it."""
    serve(executor)
    executor.take()
    return decode_step(executor, batch).engine_ns


def decode_step(executor: WatchedExecutor, batch: int) -> TimedStep:
    """The median one of some steps in which ``batch`` requests decode."""
    executor.start()
    Bench(executor).measure(Point(batch=batch, context=CONTEXT, steps=_STEPS), number=0, round_=0)
    steps = sorted(executor.take()[-_STEPS:], key=lambda step: step.engine_ns)
    return steps[len(steps) // 2]


def _between_ns(served: Sequence[TimedStep], batch: int) -> float:
    """Median time outside the engine of the steps in which ``batch`` requests decode and nothing else runs."""
    outside = [
        step.turn_ns - step.engine_ns
        for step in served
        if step.turn_ns is not None and not step.has_prompt and len(step.plan.grants) == batch
    ]
    if not outside:
        raise RuntimeError(f"no step decoded {batch} requests")
    return median(outside)
