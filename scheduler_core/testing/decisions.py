"""What the core decides, as one digest: the same for interpreted and for compiled code, or one of them is wrong."""

import hashlib
from typing import Any

from scheduler_core.policies.presets import Capacity, build_policy
from scheduler_core.policies.registry import manifests
from scheduler_core.policies.resolving import resolve
from scheduler_core.sim.cost import StepCost
from scheduler_core.sim.fastforward import FastForward
from scheduler_core.sim.rows import RequestRow
from scheduler_core.testing.builders import play, policy_spec
from scheduler_core.testing.conformance import MODEL_LENGTH, TARGET, traffic

# Rules that no preset has by itself, on the preset that most build on.
_VARIANTS: tuple[dict[str, Any], ...] = (
    {"order__by": "urgency"},
    {"order__by": "priority", "order__starvation_ms": 40.0},
    {"order__by": "shortest", "cache__preemption": "swap", "cache__host_blocks": 20},
    {"cache__tenant_quota": 0.4},
    {"cache__preemption": "keep", "cache__watermark": 0.1},
    {"cache__prefix": "radix", "cache__eviction": "cost"},
    {"execution__draft_tokens": 2},
    {"batch__chunked_prefill": False},
)


def digest() -> str:
    """Over the plans and the ends of seeded traffic on a small pool, by every preset and several rules beside them."""
    found = hashlib.sha256()
    specs = [policy_spec(name) for name in sorted(manifests())]
    for spec in (*specs, *(policy_spec("vllm_v1", **settings) for settings in _VARIANTS)):
        capacity = Capacity(kv_blocks=40, model_length=MODEL_LENGTH, profile=TARGET)
        for seed, kind in enumerate(("burst", "stream", "turns")):
            requests, rows = traffic(kind, seed), list[RequestRow]()
            played = play(resolve(spec), requests, capacity=capacity, target=TARGET)
            FastForward(build_policy(resolve(spec), capacity), StepCost(TARGET), rows.append).run(requests)
            ends = sorted((row.request, row.end_ns, str(row.outcome), row.output_tokens) for row in rows)
            found.update(f"{spec.policy} {kind} {played.report.plan_digests} {ends}\n".encode())
    return found.hexdigest()
