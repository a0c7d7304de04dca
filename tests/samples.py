"""Small specs that the tests of the control plane share."""

from typing import Any

WORKLOAD: dict[str, Any] = {
    "arrivals": {"constant": {"rate_rps": 10}},
    "lengths": {"prompt": {"fixed": 8}, "output": {"fixed": 4}},
    "requests": 20,
}
POLICY: dict[str, Any] = {"policy": "vllm_v1", "batch": {"token_budget": 512}}
EXPERIMENT: dict[str, Any] = {
    "name": "budgets",
    "workload": WORKLOAD,
    "target": {"torch": {"device": "cpu"}},
    "arms": {"baseline": {"policy": "static"}, "chunked": POLICY},
    "repeats": 2,
}
