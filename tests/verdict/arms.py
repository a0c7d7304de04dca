"""Builders of experiments and run summaries with chosen figures."""

from collections.abc import Mapping, Sequence
from typing import Any

from scheduler_core.evidence.metrics.registry import METRICS
from scheduler_core.evidence.schema import Absence, AuditReport, ClassSummary, Figure, RunSummary
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.parse import parse

PASSED = AuditReport(passed=True, checks={"R4 additivity": 1})
DEFAULTS: dict[str, float] = {
    "ttft_p95_ms": 100.0, "ttft_p95_censored_ms": 100.0, "tpot_p95_ms": 10.0, "tpot_p95_censored_ms": 10.0,
    "goodput_rps": 5.0, "completion_share": 1.0, "e2e_mean_ms": 1000.0, "queue_wait_mean_ms": 50.0,
    "prefill_mean_ms": 40.0, "decode_mean_ms": 900.0, "stall_share": 0.0, "longest_gap_max_ms": 30.0,
}  # fmt: skip


def experiment(**changed: Any) -> ExperimentSpec:
    form: dict[str, Any] = {
        "name": "test",
        "workload": {
            "arrivals": {"poisson": {"rate_rps": 4}},
            "lengths": {"prompt": {"fixed": 64}, "output": {"fixed": 8}},
            "requests": 60,
        },
        "target": {"modelled": {}},
        "arms": {
            "baseline": {"policy": "vllm_v1", "batch": {"token_budget": 2048}},
            "candidate": {"policy": "vllm_v1", "batch": {"token_budget": 512}},
        },
        **changed,
    }
    return parse(ExperimentSpec, form)


def figure(name: str, value: float | None) -> Figure:
    unit = METRICS[name].unit if name in METRICS else "ms"
    return Figure(value=value, unit=unit, absence=Absence.FAILED if value is None else None)


def summary(arm: str, repeat: int = 0, figures: Mapping[str, float | None] | None = None, **changed: Any) -> RunSummary:
    """A run with `DEFAULTS`, some figures replaced (None: infinite)."""
    budget = 2048 if arm == "baseline" else 512
    metrics = {name: figure(name, value) for name, value in {**DEFAULTS, **(figures or {})}.items()}
    values: dict[str, Any] = {
        "run": f"{arm}-{repeat}", "attempt": 1, "arm": arm, "repeat": repeat, "plan_digest": "p" * 32,
        "policy_digest": arm, "policy": {"policy": "vllm_v1", "batch": {"token_budget": budget}},
        "target": {"modelled": {"noise": True}}, "level": "simulation", "source": "modelled", "fingerprint": {},
        "complete": True, "offered": 60, "measured": 60, "outcomes": {"finished": 60}, "duration_s": 15.0,
        "steps": 100, "ties": 0, "outputs_digest": None, "lengths_digest": "l", "decisions_digest": f"{arm}{repeat}",
        "metrics": metrics, "tiers": {}, "cold_requests": 0, "audit": PASSED, **changed,
    }  # fmt: skip
    return RunSummary(**values)


def tenant(ttft: float | None) -> ClassSummary:
    """A class whose tail TTFT is ``ttft``."""
    return ClassSummary(offered=30, finished=30, metrics={"ttft_p95_censored_ms": figure("ttft_p95_censored_ms", ttft)})


def arms(
    ratios: Sequence[float], metric: str = "ttft_p95_ms", changed: Mapping[str, float | None] | None = None
) -> list[RunSummary]:
    """Pairs in which the candidate's ``metric`` is ``ratios`` times the baseline's, censored twin included."""
    from scheduler_core.evidence.metrics.latency import censored_name

    runs = []
    for repeat, ratio in enumerate(ratios):
        figures: dict[str, float | None] = {metric: DEFAULTS[metric] * ratio}
        twin = censored_name(metric)
        if twin is not None:
            figures[twin] = DEFAULTS[metric] * ratio
        runs += [summary("baseline", repeat), summary("candidate", repeat, {**figures, **(changed or {})})]
    return runs
