"""Workload specs of every kind, and a tiny trace, shared by the tests."""

from typing import Any

CHAT = {"prompt": {"lognormal": {"mean": 300, "stdev": 200}}, "output": {"uniform": {"low": 10, "high": 50}}}
TRACE_LINES = [
    {"timestamp": 0, "input_length": 1000, "output_length": 40, "hash_ids": [1, 2]},
    {"timestamp": 0, "input_length": 1024, "output_length": 7, "hash_ids": [1, 3]},
    {"timestamp": 3000, "input_length": 513, "output_length": 1, "hash_ids": [1, 4]},
    {"timestamp": 6000, "input_length": 400, "output_length": 90, "hash_ids": [5]},
]

SPECS: dict[str, dict[str, Any]] = {
    "constant": {"arrivals": {"constant": {"rate_rps": 4}}, "lengths": CHAT, "requests": 50},
    "poisson": {"arrivals": {"poisson": {"rate_rps": 4}}, "lengths": CHAT, "requests": 50, "seed": 7},
    "gamma": {"arrivals": {"gamma": {"rate_rps": 4, "burstiness": 0.3}}, "lengths": CHAT, "requests": 50},
    "closed": {"arrivals": {"closed": {"concurrency": 3, "think_s": 0.5}}, "lengths": CHAT, "requests": 50},
    "ramp": {"arrivals": {"ramp": {"from_rps": 0, "to_rps": 9, "over_s": 5}}, "lengths": CHAT, "requests": 50},
    "step": {
        "arrivals": {"step": {"stages": [{"rate_rps": 2, "for_s": 3}, {"rate_rps": 0.7, "for_s": 3}]}},
        "lengths": CHAT,
        "requests": 50,
    },
    "quantiles": {
        "arrivals": {"quantiles": {"gaps": {"values": [0.1, 0.2, 3.3]}, "rate_rps": 5}},
        "lengths": {"prompt": {"quantiles": {"values": [1, 10.5, 999]}}, "output": {"fixed": 12}, "scale": 0.3},
        "requests": 50,
    },
    "profile": {"profile": "azure-2023-conv", "rate_rps": 3, "lengths_scale": 0.25, "requests": 50},
    "sessions": {
        "arrivals": {"poisson": {"rate_rps": 4}},
        "lengths": CHAT,
        "requests": 50,
        "sessions": {"turns": {"uniform": {"low": 1, "high": 5}}, "think_s": 2},
    },
    "closed sessions": {
        "arrivals": {"closed": {"concurrency": 4, "think_s": 1}},
        "lengths": CHAT,
        "requests": 50,
        "sessions": {"turns": {"fixed": 3}, "think_s": 0.25},
    },
    "people": {
        "arrivals": {"poisson": {"rate_rps": 4}},
        "lengths": CHAT,
        "requests": 50,
        "prefix": {"groups": 3, "tokens": 100, "share": 0.6},
        "tiers": {"chat": {"share": 0.9, "priority": -1, "ttft_ms": 300}, "batch": {"share": 0.1, "priority": 5}},
        "tenants": {"a": {"share": 0.25}, "b": {"share": 0.75}},
        "output_limit": "exact",
        "block_size": 32,
    },
    "trace": {"trace": {"file": "given", "rows": "1-3", "rate_rps": 2, "lengths_scale": 0.5}, "output_limit": 64},
    "spread trace": {"trace": {"file": "given", "same_instant": "spread"}},
}
