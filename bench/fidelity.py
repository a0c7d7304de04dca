"""How well the modelled target predicts the kernels, on traffic that no calibration saw.

Each repeat calibrates afresh and then plays the cases on kernels, so that a machine which drifts meanwhile drifts for
both. ``repeat_spread`` comes first: the largest difference of two real repeats over their mean, by metric, which no
model can beat. Errors are predicted / measured - 1 over the means of all repeats; ``within`` says which are inside 5 %
(10 % for P99) or inside the spread. Throughput is one figure a run: its P50 is over the repeats. The knee is the load
at which the P95 of TTFT passes its limit.

Quick: half of capacity, two repeats. Full: half and 80 % of capacity and a pool too small for its requests, three
repeats each; then the knee, and the sign of the difference between two policies.
"""

import os
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench import harness
from gpu_runner.calibrate.profile import calibrate
from gpu_runner.engine.settings import EngineSettings
from gpu_runner.run.compose import execute
from scheduler_core.spec.job import RunJob
from scheduler_core.spec.policy import BatchSection, CacheSection, PolicySpec
from scheduler_core.spec.target import ModelledTarget, Profile, TargetSpec, TorchTarget
from scheduler_core.spec.workload import Tier
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.time import ns_from_s
from scheduler_core.workload.plan import ArrivalPlan

MODEL = "demo-s"
KV_BLOCKS = 2048
SCARCE_BLOCKS = 160
NAMES = {
    "ttft_error_mean": "ttft_mean_ms",
    "ttft_error_p50": "ttft_p50_ms",
    "ttft_error_p99": "ttft_p99_ms",
    "tpot_error_mean": "tpot_mean_ms",
    "tpot_error_p50": "tpot_p50_ms",
    "tpot_error_p99": "tpot_p99_ms",
    "throughput_error_mean": "throughput_tokens_per_s",
}
KNEE_LOADS = (0.6, 0.8, 1.0, 1.2, 1.45, 1.7)
KNEE_TIMES = 4.0  # the limit, over the median TTFT at the lowest of the loads
CONTINUOUS = PolicySpec(policy="vllm_v1")
STATIC = PolicySpec(policy="static", batch=BatchSection(size=8))
REAL = TargetSpec(torch=TorchTarget(model=MODEL, device="cpu", threads=1, kv_blocks=KV_BLOCKS))


@dataclass(frozen=True, slots=True)
class Case:
    """Traffic under a policy."""

    name: str
    plan: ArrivalPlan
    policy: PolicySpec = CONTINUOUS


def traffic(*, count: int, rate_rps: float | None, seed: int = 1) -> ArrivalPlan:
    """``count`` requests, Poisson at ``rate_rps`` or all at once; prompts of 32 to 256, outputs of 16 to 96 tokens."""
    choices, at, rows = random.Random(seed), 0.0, []
    for index in range(count):
        at += choices.expovariate(rate_rps) if rate_rps else 0.0
        prompt, output = choices.randint(32, 256), choices.randint(16, 96)
        rows.append(PlannedRequest(index, ns_from_s(at), prompt, output, output, seed=index))
    return ArrivalPlan(tuple(rows), 16)


def play(case: Case, target: TargetSpec, profile: Profile) -> dict[str, Any]:
    """The summary of one run."""
    with tempfile.TemporaryDirectory(prefix="headway-bench-") as folder:
        file = Path(folder) / "plan.jsonl.gz"
        case.plan.write(file)
        job = RunJob(
            run="bench",
            plan_file=str(file),
            policy=case.policy,
            target=target,
            profile=profile,
            tiers={"default": Tier()},
            workdir=str(Path(folder) / "work"),
            wall_limit_s=240,
        )
        result = execute(job, lambda _message: None, lambda: False)
    if result.outcome != "succeeded" or result.summary is None:
        raise RuntimeError(result.reason)
    return result.summary


def predict(case: Case, profile: Profile) -> dict[str, float | None]:
    """Metrics of the model."""
    modelled = TargetSpec(modelled=ModelledTarget(kv_blocks=profile.kv_blocks, noise=False))
    return {name: figure["value"] for name, figure in play(case, modelled, profile)["metrics"].items()}


def capacity_rps(profile: Profile) -> float:
    """Requests per second that the model finishes when it always has work."""
    case = Case("all at once", traffic(count=200, rate_rps=None))
    return float(predict(case, profile)["throughput_requests_per_s"] or 0)


def calibrated(seconds: float) -> Profile:
    """A fresh profile of one thread of this machine."""
    settings = EngineSettings(MODEL, "cpu", threads=1, kv_blocks=KV_BLOCKS)
    return calibrate(settings, seconds=seconds, name="bench")


class Errors:
    """Predicted and measured metrics of one case over repeats, each repeat by a calibration of its own."""

    def __init__(self) -> None:
        self._pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in NAMES}
        self._steps: list[float] = []
        self._kinds: list[dict[str, Any]] = []
        self.same_steps: list[int] = []

    def take(self, summary: dict[str, Any]) -> None:
        """Add a run of kernels that was set beside the model."""
        beside = summary["against_model"]
        for name, metric in NAMES.items():
            figure = beside["figures"].get(metric)
            if figure is not None:
                self._pairs[name].append((figure["predicted"], figure["measured"]))
        self._steps.append(beside["error_share"])
        self._kinds = beside["kinds"][:3]
        divergence = beside["divergence"]
        self.same_steps.append(beside["steps"] if divergence is None else divergence["steps_equal"])

    def figures(self) -> dict[str, Any]:
        """Spread of the real side first, then errors."""
        spread = {name.replace("_error_", "_"): self._spread(name) for name in NAMES}
        errors = {name: self._error(name) for name in NAMES}
        within = {
            name: error is None or abs(error) <= max(0.10 if name.endswith("_p99") else 0.05, self._spread(name) or 0.0)
            for name, error in errors.items()
        }
        return {
            "repeat_spread": spread,
            **errors,
            "throughput_error_p50": self._error_of_medians("throughput_error_mean"),
            "throughput_error_p99": None,  # a run has one throughput, and a few repeats have no tail
            "within": within,
            "step_time_error_share": round(sum(self._steps) / len(self._steps), 4),
            "most_of_the_error": [
                {
                    "kind": kind["kind"],
                    "decoding_requests": kind["decoding"],
                    "error_share": round(kind["error_share"], 4),
                    "of_error_share": round(kind["of_error_share"], 4),
                }
                for kind in self._kinds
            ],
            "equal_decisions_steps": self.same_steps,
        }

    def _error(self, name: str) -> float | None:
        pairs = self._pairs[name]
        if not pairs:
            return None
        return round(sum(predicted for predicted, _ in pairs) / sum(measured for _, measured in pairs) - 1, 4)

    def _error_of_medians(self, name: str) -> float | None:
        pairs = self._pairs[name]
        if not pairs:
            return None
        return round(median(predicted for predicted, _ in pairs) / median(measured for _, measured in pairs) - 1, 4)

    def _spread(self, name: str) -> float | None:
        values = [measured for _, measured in self._pairs[name]]
        if len(values) < 2:
            return None
        return round((max(values) - min(values)) * len(values) / sum(values), 4)


def compare(cases: Sequence[Case], *, repeats: int, seconds: float, first: Profile) -> dict[str, Any]:
    """Errors by case; ``first`` is the calibration of the first repeat."""
    errors = {case.name: Errors() for case in cases}
    for repeat in range(repeats):
        profile = first if repeat == 0 else calibrated(seconds)
        for case in cases:
            harness.say(f"{case.name}, repeat {repeat + 1}, load average {os.getloadavg()[0]:.1f} ...")
            errors[case.name].take(play(case, REAL, profile))
    return {name: found.figures() for name, found in errors.items()}


def knee(profile: Profile, best_rps: float) -> dict[str, Any]:
    """The load at which the P95 of TTFT passes its limit, on both sides, by interpolation between loads."""
    loads = [load * best_rps for load in KNEE_LOADS]
    sides: dict[str, list[float]] = {"measured": [], "predicted": []}
    at_rest = 0.0
    for rate in loads:
        case = Case("knee", traffic(count=120, rate_rps=rate, seed=3))
        harness.say(f"knee, {rate:.1f} requests/s ...")
        figures = play(case, REAL, profile)["against_model"]["figures"]
        at_rest = at_rest or figures["ttft_p50_ms"]["measured"]
        for side, found in sides.items():
            found.append(figures["ttft_p95_ms"][side])
    limit = KNEE_TIMES * at_rest
    at = {side: _crossing(loads, values, limit) for side, values in sides.items()}
    real, model = at["measured"], at["predicted"]
    error = None if real is None or model is None else round(model / real - 1, 4)
    return {"limit_ms": round(limit, 1), "measured_rps": real, "predicted_rps": model, "error_share": error}


def _crossing(loads: Sequence[float], values: Sequence[float], limit: float) -> float | None:
    for at in range(1, len(loads)):
        low, high = values[at - 1], values[at]
        if low <= limit < high:
            return round(loads[at - 1] + (loads[at] - loads[at - 1]) * (limit - low) / (high - low), 3)
    return None


def signs(profile: Profile, best_rps: float) -> dict[str, Any]:
    """Whether the model ranks static and continuous batching as the kernels do, at each load and metric."""
    right, wrong = 0, []
    for load in (0.3, 0.5, 0.8):
        plan = traffic(count=80, rate_rps=load * best_rps, seed=4)
        sides = [
            play(Case("sign", plan, policy), REAL, profile)["against_model"]["figures"]
            for policy in (STATIC, CONTINUOUS)
        ]
        for metric in ("ttft_mean_ms", "tpot_mean_ms", "e2e_mean_ms"):
            static, continuous = (side[metric] for side in sides)
            agrees = (static["measured"] < continuous["measured"]) == (static["predicted"] < continuous["predicted"])
            right += agrees
            if not agrees:
                wrong.append(f"{metric} at {load}")
    return {"right_count": right, "wrong_count": len(wrong), "wrong": wrong}


def quick() -> harness.Figures:
    """Half of capacity for about six seconds, two repeats."""
    harness.say("calibrating ...")
    profile = calibrated(12)
    best = capacity_rps(profile)
    plan = traffic(count=max(8, min(100, round(6 * 0.5 * best))), rate_rps=0.5 * best)
    found = compare([Case("half", plan)], repeats=2, seconds=12, first=profile)["half"]
    return {"capacity_rps": round(best, 3), "held_out_error_share": profile.held_out_error_share, **found}


def full() -> harness.Figures:
    """Two loads and a scarce pool, three repeats each; the knee; the signs."""
    harness.say("calibrating ...")
    profile = calibrated(40)
    best = capacity_rps(profile)
    scarce = CONTINUOUS.model_copy(update={"cache": CacheSection(blocks=SCARCE_BLOCKS)})
    cases = [
        Case("half", traffic(count=150, rate_rps=0.5 * best, seed=2)),
        Case("high", traffic(count=150, rate_rps=0.8 * best, seed=2)),
        Case("scarce", traffic(count=150, rate_rps=0.8 * best, seed=2), scarce),
    ]
    return {
        "load_average_runs": round(os.getloadavg()[0], 2),
        "held_out_error_share": profile.held_out_error_share,
        "capacity_rps": round(best, 3),
        **compare(cases, repeats=3, seconds=40, first=profile),
        "knee": knee(calibrated(40), best),
        "signs": signs(profile, best),
    }


if __name__ == "__main__":
    sys.exit(harness.main("fidelity", quick=quick, full=full))
