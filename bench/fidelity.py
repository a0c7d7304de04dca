"""How well the modelled target predicts the kernels, on traffic that no calibration saw.

Each repeat calibrates afresh and then plays the cases on kernels, so that a machine which drifts meanwhile drifts for
both. ``repeat_spread`` comes first: the largest difference of two real repeats over their mean, by metric, which no
model can beat. Errors are predicted / measured - 1 over the means of all repeats; ``within`` says which are inside 5 %
(10 % for P99) or inside the spread. The mean throughput is the run's, P50 and P99 those of its windows of 0.1 s. The
knee is the load at which the P95 of TTFT passes its limit.

Quick: half of capacity, two repeats. Full: half and 80 % of capacity and a pool too small for its requests, three
repeats each; then the knee, and the sign of the difference between two policies. ``--only shape-m`` does the same with
a larger model and requests of a quarter of the length; it takes ``--full`` to calibrate that well.

Time is the machine's. Where other work keeps the cores busy the real side then repeats itself badly, and no error says
anything; ``--only cpu-time`` has engine and calibration go by CPU time, as if they had a core to themselves (though
they share its caches), and waiting for arrivals takes none.
"""

import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import harness
from bench.limits.clock import on_cpu_time
from gpu_runner.calibrate.profile import calibrate
from gpu_runner.engine.settings import EngineSettings
from gpu_runner.run.compose import execute
from scheduler_core.evidence.records.expand import expand
from scheduler_core.evidence.records.segments import read_records
from scheduler_core.spec.job import RunJob, SegmentMessage
from scheduler_core.spec.policy import BatchSection, CacheSection, PolicySpec
from scheduler_core.spec.target import ModelledTarget, Profile, TargetSpec, TorchTarget
from scheduler_core.spec.workload import Tier
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.quantile import quantile
from scheduler_core.types.records import Record, Step
from scheduler_core.types.time import NS_PER_MS, NS_PER_S, Ns, ns_from_s
from scheduler_core.workload.plan import ArrivalPlan

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
CPU_TIME = "cpu-time"
WINDOW_NS: Ns = 100 * NS_PER_MS
WINDOWED = {"throughput_error_p50": 0.5, "throughput_error_p99": 0.99}
KNEE_LOADS = (0.6, 0.8, 1.0, 1.2, 1.45, 1.7)
KNEE_TIMES = 4.0  # the limit, over the median TTFT at the lowest of the loads
CONTINUOUS = PolicySpec(policy="vllm_v1")
STATIC = PolicySpec(policy="static", batch=BatchSection(size=8))


@dataclass(frozen=True, slots=True)
class Subject:
    """A model on one thread of this machine, and the length of its requests: ``share`` of `traffic`'s own."""

    model: str
    share: float = 1.0

    @property
    def real(self) -> TargetSpec:
        """Its kernels."""
        return TargetSpec(torch=TorchTarget(model=self.model, device="cpu", threads=1, kv_blocks=KV_BLOCKS))

    def calibrated(self, seconds: float) -> Profile:
        """A fresh profile."""
        settings = EngineSettings(self.model, "cpu", threads=1, kv_blocks=KV_BLOCKS)
        return calibrate(settings, seconds=seconds, name="bench")

    def traffic(self, *, count: int, rate_rps: float | None, seed: int = 1) -> ArrivalPlan:
        """Poisson at ``rate_rps`` or all at once; prompts of 32 to 256, outputs of 16 to 96 tokens, times the share."""
        choices, at, rows = random.Random(seed), 0.0, []
        for index in range(count):
            at += choices.expovariate(rate_rps) if rate_rps else 0.0
            prompt, output = (round(self.share * choices.randint(*range_)) for range_ in ((32, 256), (16, 96)))
            rows.append(PlannedRequest(index, ns_from_s(at), prompt, output, output, seed=index))
        return ArrivalPlan(tuple(rows), 16)


SUBJECTS = {subject.model: subject for subject in (Subject("demo-s"), Subject("shape-m", 0.25))}


@dataclass(frozen=True, slots=True)
class Case:
    """Traffic under a policy."""

    name: str
    plan: ArrivalPlan
    policy: PolicySpec = CONTINUOUS


@dataclass(frozen=True, slots=True)
class Played:
    """The summary of one run, and its output tokens a second in windows of `WINDOW_NS`, ascending."""

    summary: dict[str, Any]
    windows: list[float]

    @property
    def beside(self) -> dict[str, Any]:
        """A run of kernels beside the model."""
        return dict(self.summary["against_model"])


def play(case: Case, target: TargetSpec, profile: Profile) -> Played:
    """Do one run."""
    segments: list[Path] = []

    def told(message: object) -> None:
        if isinstance(message, SegmentMessage):
            segments.append(Path(message.file))

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
        result = execute(job, told, lambda: False)
        if result.outcome != "succeeded" or result.summary is None:
            raise RuntimeError(result.reason)
        return Played(result.summary, throughput_windows(expand(read_records(segments))))


def throughput_windows(records: Iterable[Record]) -> list[float]:
    """Output tokens a second in each window from the first step's planning to the last whole window, ascending."""
    counts: dict[int, int] = {}
    first: Ns | None = None
    for record in records:
        if isinstance(record, Step):
            first = record.planned_ns if first is None else first
            window = (record.available_ns - first) // WINDOW_NS
            counts[window] = counts.get(window, 0) + sum(grant[5] for grant in record.grants)
    return sorted(counts.get(window, 0) * NS_PER_S / WINDOW_NS for window in range(max(counts, default=0)))


def predict(case: Case, profile: Profile) -> Played:
    """The run on the model."""
    return play(case, TargetSpec(modelled=ModelledTarget(kv_blocks=profile.kv_blocks, noise=False)), profile)


def capacity_rps(subject: Subject, profile: Profile) -> float:
    """Requests per second that the model finishes when it always has work."""
    case = Case("all at once", subject.traffic(count=200, rate_rps=None))
    return float(predict(case, profile).summary["metrics"]["throughput_requests_per_s"]["value"] or 0)


class Errors:
    """Predicted and measured metrics of one case over repeats, each repeat by a calibration of its own."""

    def __init__(self) -> None:
        self._pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in (*NAMES, *WINDOWED)}
        self._steps: list[float] = []
        self._kinds: list[dict[str, Any]] = []
        self.same_steps: list[int] = []

    def take(self, real: Played, model: Played) -> None:
        """Add a run of kernels that was set beside the model, and that on the model."""
        beside = real.beside
        for name, metric in NAMES.items():
            figure = beside["figures"].get(metric)
            if figure is not None:
                self._pairs[name].append((figure["predicted"], figure["measured"]))
        for name, share in WINDOWED.items():
            self._pairs[name].append((quantile(model.windows, share), quantile(real.windows, share)))
        self._steps.append(beside["error_share"])
        self._kinds = beside["kinds"][:3]
        divergence = beside["divergence"]
        self.same_steps.append(beside["steps"] if divergence is None else divergence["steps_equal"])

    def figures(self) -> dict[str, Any]:
        """Spread of the real side first, then errors."""
        spread = {name.replace("_error_", "_"): self._spread(name) for name in self._pairs}
        errors = {name: self._error(name) for name in self._pairs}
        within = {
            name: error is None or abs(error) <= max(0.10 if name.endswith("_p99") else 0.05, self._spread(name) or 0.0)
            for name, error in errors.items()
        }
        return {
            "repeat_spread": spread,
            **errors,
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
        measured = sum(real for _, real in pairs)
        return round(sum(model for model, _ in pairs) / measured - 1, 4) if measured else None

    def _spread(self, name: str) -> float | None:
        values = [measured for _, measured in self._pairs[name]]
        if len(values) < 2 or not sum(values):
            return None
        return round((max(values) - min(values)) * len(values) / sum(values), 4)


def compare(subject: Subject, cases: Sequence[Case], *, repeats: int, seconds: float, first: Profile) -> dict[str, Any]:
    """Errors by case; ``first`` is the calibration of the first repeat."""
    errors = {case.name: Errors() for case in cases}
    for repeat in range(repeats):
        profile = first if repeat == 0 else subject.calibrated(seconds)
        for case in cases:
            harness.say(f"{case.name}, repeat {repeat + 1}, load average {os.getloadavg()[0]:.1f} ...")
            errors[case.name].take(play(case, subject.real, profile), predict(case, profile))
    return {name: found.figures() for name, found in errors.items()}


def knee(subject: Subject, profile: Profile, best_rps: float) -> dict[str, Any]:
    """The load at which the P95 of TTFT passes its limit, on both sides, by interpolation between loads."""
    loads = [load * best_rps for load in KNEE_LOADS]
    sides: dict[str, list[float]] = {"measured": [], "predicted": []}
    at_rest = 0.0
    for rate in loads:
        case = Case("knee", subject.traffic(count=120, rate_rps=rate, seed=3))
        harness.say(f"knee, {rate:.1f} requests/s ...")
        figures = play(case, subject.real, profile).beside["figures"]
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


def signs(subject: Subject, profile: Profile, best_rps: float) -> dict[str, Any]:
    """Whether the model ranks static and continuous batching as the kernels do, at each load and metric."""
    right, wrong = 0, []
    for load in (0.3, 0.5, 0.8):
        plan = subject.traffic(count=80, rate_rps=load * best_rps, seed=4)
        sides = [
            play(Case("sign", plan, policy), subject.real, profile).beside["figures"] for policy in (STATIC, CONTINUOUS)
        ]
        for metric in ("ttft_mean_ms", "tpot_mean_ms", "e2e_mean_ms"):
            static, continuous = (side[metric] for side in sides)
            agrees = (static["measured"] < continuous["measured"]) == (static["predicted"] < continuous["predicted"])
            right += agrees
            if not agrees:
                wrong.append(f"{metric} at {load}")
    return {"right_count": right, "wrong_count": len(wrong), "wrong": wrong}


def quick(only: frozenset[str] = frozenset()) -> harness.Figures:
    """Half of capacity for nine seconds at most, two repeats."""
    return _each(only, _quick)


def full(only: frozenset[str] = frozenset()) -> harness.Figures:
    """Two loads and a scarce pool, three repeats each; the knee; the signs."""
    return _each(only, _full)


def _each(only: frozenset[str], study: Callable[[Subject], harness.Figures]) -> harness.Figures:
    """The smallest model, or the one that was named; several by name."""
    named = [name for name in SUBJECTS if name in only] or ["demo-s"]
    with on_cpu_time() if CPU_TIME in only else nullcontext():
        found = {name: study(SUBJECTS[name]) for name in named}
    figures = found if len(found) > 1 else found.popitem()[1]
    return {"clock": CPU_TIME if CPU_TIME in only else "wall", **figures}


def _quick(subject: Subject) -> harness.Figures:
    harness.say(f"calibrating {subject.model} ...")
    profile = subject.calibrated(12)
    best = capacity_rps(subject, profile)
    plan = subject.traffic(count=max(8, min(100, round(9 * 0.5 * best))), rate_rps=0.5 * best)  # P99 needs 100
    found = compare(subject, [Case("half", plan)], repeats=2, seconds=12, first=profile)["half"]
    return {
        "model": subject.model,
        "capacity_rps": round(best, 3),
        "held_out_error_share": profile.held_out_error_share,
        **found,
    }


def _full(subject: Subject) -> harness.Figures:
    harness.say(f"calibrating {subject.model} ...")
    profile = subject.calibrated(40)
    best = capacity_rps(subject, profile)
    blocks = round(SCARCE_BLOCKS * subject.share)
    scarce = CONTINUOUS.model_copy(update={"cache": CacheSection(blocks=blocks)})
    high = subject.traffic(count=150, rate_rps=0.8 * best, seed=2)
    cases = [
        Case("half", subject.traffic(count=150, rate_rps=0.5 * best, seed=2)),
        Case("high", high),
        Case("scarce", high, scarce),
    ]
    return {
        "model": subject.model,
        "load_average_runs": round(os.getloadavg()[0], 2),
        "held_out_error_share": profile.held_out_error_share,
        "capacity_rps": round(best, 3),
        **compare(subject, cases, repeats=3, seconds=40, first=profile),
        "knee": knee(subject, subject.calibrated(40), best),
        "signs": signs(subject, profile, best),
    }


if __name__ == "__main__":
    sys.exit(harness.main("fidelity", quick=quick, full=full, parts=(*SUBJECTS, CPU_TIME)))
