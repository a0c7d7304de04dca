"""The demo experiment: static batching against continuous batching at two token budgets, sized to this machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway import sizing
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.parse import parse
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.target import Profile, TorchTarget
from scheduler_core.spec.workload import Trace, WorkloadSpec
from scheduler_core.types.errors import InputError, Problem
from scheduler_core.workload.freeze import freeze
from scheduler_core.workload.plan import ArrivalPlan
from scheduler_core.workload.traces.data import TraceData

SHAPE = "azure-2023-conv"
MODEL = "demo-s"
KV_BLOCKS = 1024
BLOCK_SIZE = 16
REPEATS = 5
SEED = 7
PROBE_REQUESTS = 400


@dataclass(frozen=True)
class Demo:
    """The experiment to submit, how it was sized, and one line on where its traffic comes from."""

    experiment: ExperimentSpec
    size: sizing.Size
    traffic: str


def target() -> TorchTarget:
    """What the demo calibrates and runs on."""
    return TorchTarget(model=MODEL, kv_blocks=KV_BLOCKS)


def build(profile: Profile, *, trace: TraceData | None = None, file: Path | None = None) -> Demo:
    """Size the demo to the machine that ``profile`` was calibrated on.

    With ``trace`` (read from ``file``) its rows are played, else synthetic traffic after the bundled profile.

    Raises:
        InputError: the trace has too few usable rows.
    """
    source = _Source(trace, file)
    machine = sizing.Machine(profile, KV_BLOCKS)
    size = sizing.choose(source.plan, arms, machine, scale_limit=source.scale_limit(profile))
    plan = source.plan(size.requests, size.rate_rps, size.lengths_scale)
    compared = arms(plan)
    workload = source.spec(size.requests, size.rate_rps, size.lengths_scale).canonical()
    data = {
        "name": "demo",
        "workload": {**workload, "tiers": _tiers(compared, plan, machine)},
        "target": {"torch": target().canonical()},
        "arms": {name: policy.canonical() for name, policy in compared.items()},
        "repeats": REPEATS,
        "goal": {
            "kind": "interactive",
            "primary": "ttft_p95_ms",
            "better_by": "10%",
            # Not TPOT: a static batch decodes fast because everyone else waits. The whole answer tells both sides.
            "guard": {"e2e_p95_ms": "+5%", "goodput_rps": "-2%"},
        },
    }
    return Demo(parse(ExperimentSpec, data), size, source.words())


def arms(plan: ArrivalPlan) -> Mapping[str, PolicySpec]:
    """Static batching, and continuous batching at a budget of about two prompts and of half a prompt, equal cache."""
    mean = plan.prompt_tokens / len(plan.requests)
    large = _power_of_two(2 * mean, least=128)
    small = max(large // 4, 32)
    cache = {"blocks": KV_BLOCKS, "block_size": BLOCK_SIZE}
    written: dict[str, dict[str, Any]] = {
        "static": {"policy": "static", "cache": cache, "batch": {"size": 8}},
        f"budget-{large}": {"policy": "vllm_v1", "cache": cache, "batch": {"token_budget": large}},
        f"budget-{small}": {"policy": "vllm_v1", "cache": cache, "batch": {"token_budget": small}},
    }
    return {name: parse(PolicySpec, policy) for name, policy in written.items()}


class _Source:
    """Where the demo's traffic comes from: a trace, or the bundled shape."""

    def __init__(self, trace: TraceData | None, file: Path | None) -> None:
        self._trace = trace
        self._file = file
        if trace is not None and len(trace) < sizing.FEWEST_REQUESTS:
            message = f"{len(trace)} usable rows; the demo needs at least {sizing.FEWEST_REQUESTS}"
            raise InputError([Problem(str(file), message)])

    def words(self) -> str:
        """For people: what is played."""
        if self._trace is None:
            return f"synthetic traffic after the lengths and gaps of {SHAPE} (its quantiles; not the trace itself)"
        return f"rows of {self._file} ({self._trace.format})"

    def spec(self, requests: int, rate_rps: float, scale: float) -> WorkloadSpec:
        """The workload at a size."""
        if self._trace is None:
            return WorkloadSpec(profile=SHAPE, requests=requests, rate_rps=rate_rps, lengths_scale=scale, seed=SEED)
        rows = f"1-{min(requests, len(self._trace))}"
        trace = Trace.model_validate(
            {
                "file": str(self._file),
                "format": self._trace.format,
                "rows": rows,
                "rate_rps": rate_rps if self._trace.timed else None,
                "lengths_scale": scale,
            }
        )
        return WorkloadSpec(trace=trace, seed=SEED)

    def plan(self, requests: int, rate_rps: float, scale: float) -> ArrivalPlan:
        """Its frozen plan."""
        return freeze(self.spec(requests, rate_rps, scale), trace=self._trace)

    def scale_limit(self, profile: Profile) -> float:
        """The scale at which the longest request just fits the model and the pool, at most 1."""
        plan = self.plan(PROBE_REQUESTS, 1.0, 1.0)
        longest = max(request.prompt_tokens + request.output_limit for request in plan.requests)
        room = min(profile.model_length, KV_BLOCKS * BLOCK_SIZE) - BLOCK_SIZE
        return min(1.0, room / longest)


def _tiers(compared: Mapping[str, PolicySpec], plan: ArrivalPlan, machine: sizing.Machine) -> dict[str, Any]:
    """One tier with promises that this machine can keep: twice the 95th percentiles of the arm that waits least."""
    served = [sizing.simulate(policy, plan.requests, machine) for policy in compared.values()]
    best = min(served, key=lambda run: sizing.p95(run.ttft_s))
    ttft_ms, tpot_ms = 2000 * sizing.p95(best.ttft_s), 2000 * sizing.p95(best.tpot_s)
    return {"chat": {"ttft_ms": float(f"{ttft_ms:.2g}"), "tpot_ms": float(f"{tpot_ms:.2g}"), "share": 1.0}}


def _power_of_two(value: float, *, least: int) -> int:
    size = least
    while size < value:
        size *= 2
    return size
