"""What the core decides, as one digest: the same for interpreted and for compiled code, or one of them is wrong."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

from scheduler_core.cluster.build import Site
from scheduler_core.drive.cuts import Outside
from scheduler_core.policies.presets import Capacity, build_policy
from scheduler_core.policies.registry import manifests
from scheduler_core.policies.resolving import resolve
from scheduler_core.sim.cost import StepCost
from scheduler_core.sim.fastforward import FastForward
from scheduler_core.sim.fleet import Fleet, why_step_by_step
from scheduler_core.sim.rows import RequestRow
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.topology import InstanceGroup, Topology
from scheduler_core.testing.builders import play, play_cluster, policy_spec
from scheduler_core.testing.conformance import MODEL_LENGTH, TARGET, traffic
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.cluster_records import ClusterRecord
from scheduler_core.types.records import Finished, Record

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


_CAPACITY = Capacity(kv_blocks=40, model_length=MODEL_LENGTH, profile=TARGET)

_ROUTES = (
    *("round_robin", "least_loaded", "two_choices", "sticky", "prefix", "first_token"),
    *("fewest_tokens", "freest", "kv_cost"),
)
_POOLS: tuple[dict[str, Any], ...] = (
    *({"layout": "replicas", "route": route} for route in _ROUTES),
    {"layout": "replicas", "look_every_ms": 30.0},
    {"layout": "replicas", "migrate": {"every_ms": 20.0, "above": 0.3}},
    {"layout": "replicas", "route": "sticky", "transfer": {"wait_ms": 1.0, "window_s": 0.01, "every_s": 0.01}},
    {"layout": "split", "route": "round_robin"},
    {"layout": "split", "handoff": "cheapest", "handoff_budget_ms": 2.0, "patience_ms": 5.0},
    {"layout": "split", "handoff": "recompute"},
    {"layout": "split", "reserve": "arrival", "broken": "transfer", "lease_ms": 5.0},
    {"layout": "split", "reserve": "arrival", "move": "chunks", "first_token": "arrival"},
    {"layout": "split", "reserve": "before", "move": "layers", "first_token": "decode", "headroom_tokens": 4},
    {"layout": "split", "borrow_tokens": 100, "accept_share": 0.8},
)
_GROUPS = {"a": 2, "b": 2}
_LINKS: dict[str, Any] = {
    "link_gb_per_s": 0.02, "kv_bytes_per_token": 2000, "kv_layers": 3, "broken_share": 0.1, "late_share": 0.1,
    "late_ms": 3.0,
}  # fmt: skip
_CANCELS = [(number, number * 10_000_000) for number in range(5, 30, 6)]


def digest() -> str:
    """Over the plans and the ends of seeded traffic on a small pool, by every preset and several rules beside them.

    And over what clusters do that route, hand over and move requests, each played step by step and, where that is
    possible, from event to event.
    """
    found = hashlib.sha256()
    for line in (*_instances(), *_clusters()):
        found.update(f"{line}\n".encode())
    return found.hexdigest()


def _instances() -> Iterator[str]:
    specs = [policy_spec(name) for name in sorted(manifests())]
    for spec in (*specs, *(policy_spec("vllm_v1", **settings) for settings in _VARIANTS)):
        for seed, kind in enumerate(("burst", "stream", "turns")):
            requests, rows = traffic(kind, seed), list[RequestRow]()
            played = play(resolve(spec), requests, capacity=_CAPACITY, target=TARGET)
            FastForward(build_policy(resolve(spec), _CAPACITY), StepCost(TARGET), rows.append).run(requests)
            yield f"{spec.policy} {kind} {played.report.plan_digests} {_ends(rows)}"


def _clusters() -> Iterator[str]:
    for number, pools in enumerate(_POOLS):
        settings = {f"pools__{name}": value for name, value in pools.items()}
        if pools["layout"] == "split":
            settings["pools__prefill"] = ("a",)
        spec, kind = policy_spec("vllm_v1", **settings), ("stream", "turns", "burst")[number % 3]
        around: dict[str, Any] = {"capacity": _CAPACITY, "target": TARGET, "cancels": _CANCELS, "law_interval": 16}
        _, sink, _ = play_cluster(spec, traffic(kind, number), _GROUPS, **around, **_LINKS)
        yield f"{pools} {[record for record in sink.records if isinstance(record, ClusterRecord | Finished)]}"
        if not why_step_by_step(spec):
            yield _fleet(spec, traffic(kind, number), Outside(cancels=_CANCELS))
            yield _fleet(spec, iter(traffic("stream", number)), Outside())


def _fleet(spec: PolicySpec, requests: Iterable[PlannedRequest], outside: Outside) -> str:
    """What is told and what ended of a cluster that is played from event to event."""
    topology = Topology(groups={name: InstanceGroup(count=count) for name, count in _GROUPS.items()}, **_LINKS)
    cost, rows, told = StepCost(TARGET), list[RequestRow](), list[Record]()
    site = Site(topology, dict.fromkeys(_GROUPS, _CAPACITY), lambda _, tokens: cost.duration_ns(tokens, 0, 0, 0, 0))
    fleet = Fleet(spec, site, [cost] * 4, lambda row, _: rows.append(row), outside=outside, observe=told.append)
    report = fleet.run(requests)
    return f"{report} {told} {_ends(rows)}"


def _ends(rows: list[RequestRow]) -> list[tuple[int, int, str, int]]:
    return sorted((row.request, row.end_ns, str(row.outcome), row.output_tokens) for row in rows)
