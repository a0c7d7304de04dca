"""Plain data of the pages' tests."""

from typing import Any

from tests.samples import EXPERIMENT

HOSTILE = "<img src=x onerror=alert(1)>{{7*7}}"

TRACE = b"arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,12,0\n1,9,3\n4,7,2\n"
PROFILE: dict[str, Any] = {
    "name": "p", "model": "demo-s", "device": "cpu", "dtype": "float32",
    "cost": {"base_ns": 1e6, "prefill_token_ns": 1e4, "decode_request_ns": 1e5, "context_token_ns": 10.0},
    "residual_share": 0.05, "drift_share": 0.01, "held_out_error_share": 0.06, "domain": {"prefill_tokens": 512},
    "steps_measured": 400, "measured_on": {"cpu": HOSTILE}, "kv_blocks": 512, "model_length": 4096,
}  # fmt: skip
SUMMARY: dict[str, Any] = {
    "offered": 20, "measured": 20, "outcomes": {"finished": 20}, "duration_s": 2.0, "steps": 80, "ties": 0,
    "level": "cpu_kernels", "outputs_digest": None, "fingerprint": {"cpu": HOSTILE}, "tiers": {
        HOSTILE: {"offered": 20, "finished": 20, "met": 19, "attainment_share": 0.95, "by_objective": {}}},
    "metrics": {
        "ttft_p95_ms": {"value": 123.4, "unit": "ms", "n": 20, "absence": None, "note": HOSTILE},
        "tpot_p95_ms": {"value": None, "unit": "ms", "n": 3, "absence": "insufficient_samples", "note": ""},
        "completion_share": {"value": 1.0, "unit": "share", "n": 20, "absence": None, "note": ""},
    },
    "audit": {"passed": False, "checks": {}, "violations": [{"rule": "A-1", "where": "r", "message": HOSTILE}]},
}  # fmt: skip


def _gate(**changes: Any) -> dict[str, Any]:
    return {
        "metric": "ttft_p95_ms", "role": "primary", "unit": "ms", "better": "lower", "margin": 0.1, "baseline": 200.0,
        "candidate": 120.0, "change": -0.4, "interval": {"low": -0.5, "high": -0.3, "confidence": 0.95},
        "label": "better", "state": "passed", "sentence": "TTFT fell.", **changes,
    }  # fmt: skip


VERDICT: dict[str, Any] = {
    "schema_version": "headway-verdict/1",
    "experiment": "budgets",
    "identical_outputs": "equal in every run",
    "exit_code": 0,
    "comparisons": [
        {
            "baseline": "baseline", "candidate": "chunked", "comparable": True, "obstacles": [], "decision": "accept",
            "headline": "accept chunked", "pairs": 5, "requests_per_run": 20, "plan_digest": "ab", "exit_code": 0,
            "gates": [
                _gate(),
                _gate(metric="goodput_rps", role="guard", better="higher", margin=-0.02, state="undecided",
                      label="undecided", change=0.0, interval=None),
                _gate(metric="tpot_p95_ms", role="guard", margin=0.05, baseline=None, candidate=None, change=None,
                      interval=None, label="missing", state="missing", sentence=HOSTILE),
            ],
            "effects": [
                {"layer": "batch", "metric": "ttft_p95_ms", "change": -0.4, "credited": True, "sentence": "moved it"}
            ],
            "why": [HOSTILE],
            "conditions": ["on this machine"],
            "next_steps": [
                {"title": "sweep", "because": "capacity", "experiment": {**EXPERIMENT, "name": "budgets next"},
                 "command": "headway submit next.yaml"},
                {"title": "nothing to run", "because": "x", "experiment": None, "command": ""},
            ],
        }
    ],
}  # fmt: skip

SEARCH: dict[str, Any] = {
    "name": "budgets", "workload": EXPERIMENT["workload"], "space": {"batch.size": {"values": ["4", "8"]}},
}  # fmt: skip
SEARCH_RESULT: dict[str, Any] = {
    "name": HOSTILE, "method": "grid", "objectives": {"cost_per_million_tokens": "lower", "ttft_p95_ms": "lower"},
    "trials": [
        {"number": 0, "choice": {}, "figures": {"cost_per_million_tokens": 2.0, "ttft_p95_ms": 90.0}},
        {"number": 1, "choice": {"batch.size": HOSTILE},
         "figures": {"cost_per_million_tokens": 1.0, "ttft_p95_ms": 80.0}},
        {"number": 2, "choice": {"batch.size": "8"}, "failure": HOSTILE},
    ],
    "front": [1], "best": [1], "sentence": HOSTILE,
}  # fmt: skip
