"""How well the modelled target predicts the kernels: the same traffic on both, after a fresh calibration.

Errors are predicted / measured - 1 against the mean of the real repeats; ``repeat_spread`` is the largest difference of
two real repeats over their mean, which no model can beat. Quick: half of capacity, two repeats. Full: half and 80 % of
capacity and a pool too small for its requests, three repeats each.
"""

import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import harness
from gpu_runner.calibrate.profile import calibrate
from gpu_runner.engine.settings import EngineSettings
from gpu_runner.run.compose import execute
from scheduler_core.spec.job import RunJob
from scheduler_core.spec.policy import CacheSection, PolicySpec
from scheduler_core.spec.target import ModelledTarget, Profile, TargetSpec, TorchTarget
from scheduler_core.spec.workload import Tier
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.time import ns_from_s
from scheduler_core.workload.plan import ArrivalPlan

MODEL = "demo-s"
KV_BLOCKS = 2048
SCARCE_BLOCKS = 160
NAMES = {
    "ttft_error_mean_share": "ttft_mean_ms",
    "ttft_error_p50_share": "ttft_p50_ms",
    "ttft_error_p99_share": "ttft_p99_ms",
    "tpot_error_mean_share": "tpot_mean_ms",
    "tpot_error_p50_share": "tpot_p50_ms",
    "tpot_error_p99_share": "tpot_p99_ms",
    "throughput_error_mean_share": "throughput_tokens_per_s",
}


def traffic(*, count: int, rate_rps: float | None, seed: int = 1) -> ArrivalPlan:
    """``count`` requests, Poisson at ``rate_rps`` or all at once; prompts of 32 to 256, outputs of 16 to 96 tokens."""
    choices, at, rows = random.Random(seed), 0.0, []
    for index in range(count):
        at += choices.expovariate(rate_rps) if rate_rps else 0.0
        prompt, output = choices.randint(32, 256), choices.randint(16, 96)
        rows.append(PlannedRequest(index, ns_from_s(at), prompt, output, output, seed=index))
    return ArrivalPlan(tuple(rows), 16)


def play(plan: ArrivalPlan, target: TargetSpec, *, profile: Profile | None = None, blocks: int | None = None) -> Any:
    """The metrics of one run, by name; None where absent."""
    with tempfile.TemporaryDirectory(prefix="headway-bench-") as folder:
        file = Path(folder) / "plan.jsonl.gz"
        plan.write(file)
        job = RunJob(
            run="bench",
            plan_file=str(file),
            policy=PolicySpec(policy="vllm_v1", cache=CacheSection(blocks=blocks)),
            target=target,
            profile=profile,
            tiers={"default": Tier()},
            workdir=str(Path(folder) / "work"),
            wall_limit_s=240,
        )
        result = execute(job, lambda _message: None, lambda: False)
    if result.outcome != "succeeded" or result.summary is None:
        raise RuntimeError(result.reason)
    return {name: figure["value"] for name, figure in result.summary["metrics"].items()}


def compare(
    plan: ArrivalPlan, real: TargetSpec, profile: Profile, *, repeats: int, blocks: int | None = None
) -> dict[str, Any]:
    """Errors of the model on ``plan`` and the spread of the real repeats."""
    modelled = TargetSpec(modelled=ModelledTarget(kv_blocks=profile.kv_blocks, noise=False))
    predicted = play(plan, modelled, profile=profile, blocks=blocks)
    measured = [play(plan, real, blocks=blocks) for _ in range(repeats)]
    figures: dict[str, Any] = {}
    spreads = []
    for name, metric in NAMES.items():
        values = [run[metric] for run in measured if run.get(metric)]
        if len(values) < repeats or not predicted.get(metric):
            figures[name] = None
            continue
        mean = sum(values) / len(values)
        figures[name] = round(predicted[metric] / mean - 1, 4)
        spreads.append((max(values) - min(values)) / mean)
    return {**figures, "repeat_spread_share": round(max(spreads), 4) if spreads else None}


def capacity_rps(profile: Profile) -> float:
    """Requests per second that the model finishes when it always has work."""
    plan = traffic(count=200, rate_rps=None)
    modelled = TargetSpec(modelled=ModelledTarget(kv_blocks=profile.kv_blocks, noise=False))
    return float(play(plan, modelled, profile=profile)["throughput_requests_per_s"])


def calibrated(seconds: float) -> tuple[Profile, TargetSpec]:
    """A fresh profile of one thread of this machine, and the target it describes."""
    harness.say("calibrating ...")
    settings = EngineSettings(MODEL, "cpu", threads=1, kv_blocks=KV_BLOCKS)
    profile = calibrate(settings, seconds=seconds, name="bench")
    return profile, TargetSpec(torch=TorchTarget(model=MODEL, device="cpu", threads=1, kv_blocks=KV_BLOCKS))


def quick() -> harness.Figures:
    """Half of capacity for about eight seconds, two real repeats."""
    profile, real = calibrated(10)
    rate = 0.5 * capacity_rps(profile)
    harness.say(f"{rate:.2f} requests/s ...")
    plan = traffic(count=max(8, min(100, round(8 * rate))), rate_rps=rate)
    figures = compare(plan, real, profile, repeats=2)
    return {"offered_rps": round(rate, 3), "held_out_error_share": profile.held_out_error_share, **figures}


def full() -> harness.Figures:
    """Two loads and a scarce pool, three real repeats each."""
    profile, real = calibrated(60)
    best = capacity_rps(profile)
    figures: dict[str, Any] = {"held_out_error_share": profile.held_out_error_share, "capacity_rps": round(best, 3)}
    cases = (("half", 0.5, None), ("high", 0.8, None), ("scarce", 0.5, SCARCE_BLOCKS))
    for name, load, blocks in cases:
        harness.say(f"{name} ...")
        plan = traffic(count=150, rate_rps=load * best, seed=2)
        figures[name] = compare(plan, real, profile, repeats=3, blocks=blocks)
    return figures


if __name__ == "__main__":
    sys.exit(harness.main("fidelity", quick=quick, full=full))
