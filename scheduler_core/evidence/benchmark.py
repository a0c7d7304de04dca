"""The run summary as ``inference-benchmark/v1``: twenty shared keys, JSON null where absent."""

from typing import Any

from scheduler_core.evidence.account import account
from scheduler_core.evidence.schema import Figure, RunSummary

BENCHMARK_SCHEMA = "inference-benchmark/v1"

# Shared key -> metric of the registry. Means per request over finished warm requests, unless the metric says other.
SHARED_KEYS: dict[str, str] = {
    "ttft_ms": "ttft_mean_ms",
    "tpot_ms": "tpot_mean_ms",
    "queue_wait_ms": "queue_wait_mean_ms",
    "input_transfer_ms": "input_transfer_mean_ms",
    "stream_output_ms": "stream_output_mean_ms",
    "handoff_ms": "handoff_ms",
    "recompute_ms": "recompute_mean_ms",
    "network_wait_ms": "network_wait_ms",
    "communication_ms": "communication_ms",
    "exposed_comm_ms": "exposed_comm_ms",
    "overlap_ratio": "overlap_ratio",
    "idle_gap_ms": "idle_gap_ms",
    "input_transfer_bytes": "input_transfer_bytes",
    "transfer_bytes": "transfer_bytes",
    "throughput_tokens_per_s": "throughput_tokens_per_s",
    "throughput_requests_per_s": "throughput_requests_per_s",
    "p95_ms": "e2e_p95_ms",
    "p99_ms": "e2e_p99_ms",
    "peak_memory_mb": "peak_memory_mb",
    "model_load_ms": "model_load_ms",
}


def benchmark(summary: RunSummary, *, role: str, decision: str | None = None) -> dict[str, Any]:
    """The exchange form of a summary; ``role`` is ``baseline`` or ``candidate``."""
    figures = {key: summary.metrics[name] for key, name in SHARED_KEYS.items()}
    unfinished = {name: count for name, count in summary.outcomes.items() if name != "finished" and count}
    return {
        "schema_version": BENCHMARK_SCHEMA,
        "project": "headway",
        "strategy": summary.arm,
        "role": role,
        "config": {
            "policy": summary.policy,
            "target": summary.target,
            "plan_digest": summary.plan_digest,
            "policy_digest": summary.policy_digest,
            "repeat": summary.repeat,
            "fingerprint": summary.fingerprint,
        },
        "metrics": {key: figure.value for key, figure in figures.items()},
        "absence": {key: _reason(figure) for key, figure in figures.items() if figure.value is None},
        "quality": {
            "outputs_digest": summary.outputs_digest,
            "ties": summary.ties,
            "completion": summary.outcomes,
            "account": account(summary.offered, summary.outcomes, summary.unsent).sentence(),
        },
        "status": "success" if summary.complete and summary.audit.passed else "failed",
        "evidence_level": summary.level,
        "failure": _failure(summary, unfinished),
        "decision": decision,
        "strategy_metrics": {name: figure.value for name, figure in summary.metrics.items()},
        "source": summary.source,
    }


def _reason(figure: Figure) -> str:
    return figure.absence.value if figure.absence is not None else ""


def _failure(summary: RunSummary, unfinished: dict[str, int]) -> dict[str, Any]:
    if not summary.complete:
        reason: str | None = "the run ended before all offered requests had"
    elif not summary.audit.passed:
        first = summary.audit.violations[0]
        reason = f"audit: {first.rule}: {first.where}: {first.message}"
    elif unfinished:
        reason = ", ".join(f"{count} {name}" for name, count in unfinished.items())
    else:
        reason = None
    return {"failure_reason": reason, "retest_path": None if reason is None else f"run {summary.run} as a new attempt"}
