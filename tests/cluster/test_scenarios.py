"""Scenes of several instances: each file of `examples/scenarios` that has a topology, played, with what it says."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from headway.play import play
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.parse import parse
from scheduler_core.spec.yamltext import load_yaml

FOLDER = Path(__file__).parents[2] / "examples" / "scenarios"


def summaries(name: str, **workload: Any) -> dict[str, RunSummary]:
    """Plays a scene, with another ``workload`` where that is given; what came of each arm."""
    path = FOLDER / f"{name}.yaml"
    data = load_yaml(path.read_text())
    data["workload"] |= workload
    played = play(parse(ExperimentSpec, data), base=path.parent, on_step=lambda step: None)
    assert not played.failures
    assert all(run.audit.passed for run in played.runs)
    return {run.arm: run for run in played.runs}


@cache
def figures(name: str) -> Callable[[str, str], float]:
    """Plays a scene as it stands; what to ask for a figure of an arm, by name."""
    by_arm = {arm: run.metrics for arm, run in summaries(name).items()}

    def figure(arm: str, metric: str) -> float:
        value = by_arm[arm][metric].value
        assert value is not None, (arm, metric, by_arm[arm][metric])
        return value

    return figure


def test_pools_keep_two_promises_that_equal_instances_cannot_keep_at_once() -> None:
    """G3. Large steps break the pace that was promised, small ones the first token; apart, nobody misses either."""
    of = figures("one-kind-cannot-serve-both")
    assert of("large-steps", "tpot_p95_ms") > 8.6 > of("small-steps", "tpot_p95_ms")
    assert of("small-steps", "ttft_p95_ms") > 280 > of("large-steps", "ttft_p95_ms")
    assert max(of("large-steps", "attainment_share"), of("small-steps", "attainment_share")) < 0.9
    assert of("pools", "attainment_share") == 1
    assert of("pools", "goodput_rps") > 1.1 * of("small-steps", "goodput_rps")


def test_a_handoff_on_the_critical_path_costs_the_tail_and_recomputing_mends_it() -> None:
    """G4. Pools carry more than replicas, but requests and gaps at the tail take longer: the difference is handoff.

    Where the sooner of transfer and recomputation is taken, most of the gap is gone, the slowest requests are faster
    than with replicas, and more is carried still. Staying where the prompt was computed moves nothing.
    """
    of = figures("handoff-on-the-path")
    assert of("transfer", "throughput_tokens_per_s") > of("replicas", "throughput_tokens_per_s")
    assert of("transfer", "e2e_p99_ms") > 1.1 * of("replicas", "e2e_p99_ms")
    assert of("transfer", "itl_p99_ms") > 100 * of("replicas", "itl_p99_ms")
    assert of("transfer", "handoff_ms") > 0.2 * of("transfer", "e2e_p99_ms")
    assert of("cheapest", "itl_p99_ms") < of("transfer", "itl_p99_ms") / 4
    assert of("cheapest", "e2e_p99_ms") < of("replicas", "e2e_p99_ms")
    assert of("cheapest", "throughput_tokens_per_s") > 1.1 * of("transfer", "throughput_tokens_per_s")
    assert of("stay", "transfer_bytes") == 0
    assert of("stay", "handoff_fallback_share") == 1
    assert of("stay", "throughput_tokens_per_s") > of("transfer", "throughput_tokens_per_s")
    assert of("stay", "itl_p99_ms") < of("transfer", "itl_p99_ms")


def test_a_slow_pool_that_decodes_is_relieved_by_staying() -> None:
    """Who waits for room in it waits for seconds; with patience most stay, and all are served sooner."""
    of = figures("slow-decode-pool")
    assert of("waits", "handoff_fallback_share") == 0
    assert of("stays", "handoff_fallback_share") > 0.5
    assert of("stays", "e2e_p95_ms") < of("waits", "e2e_p95_ms") / 2
    assert of("stays", "longest_gap_p95_ms") < of("waits", "longest_gap_p95_ms") / 10
    assert of("stays", "throughput_tokens_per_s") > 2 * of("waits", "throughput_tokens_per_s")


def test_a_burst_is_met_late_by_what_starts_cold_and_a_start_is_no_latency() -> None:
    """A start takes the 3 s of its stages, no more and no less, and stands apart; requests show what they waited.

    With starts the burst's tail is far below one instance's, but above that of instances always on, for fewer hours.
    Who came while others were starting is told apart from who found all of them warm.
    """
    of = figures("scaling-through-a-burst")
    assert of("scaled", "scale_out_latency_ms") == 3000
    assert of("scaled", "scale_outs") >= 1
    assert of("scaled", "ttft_p95_ms") < of("one", "ttft_p95_ms") / 2
    assert of("scaled", "ttft_p95_ms") > of("always", "ttft_p95_ms")
    assert of("scaled", "device_hours") < of("always", "device_hours")
    assert of("scaled", "ttft_starting_p95_ms") > 2 * of("scaled", "ttft_settled_p95_ms")
    assert of("scaled", "ttft_settled_p95_ms") < of("one", "ttft_p95_ms") / 2


def test_a_burst_of_one_tier_hurts_another_unless_that_has_instances_of_its_own() -> None:
    """Gold sends the same requests beside an eighth and beside all of the others' load: apart it keeps every promise,
    on shared instances it loses a quarter of them, though those are less busy than they would be apart."""
    kept = {
        (arm, times): run.tiers["gold"].attainment_share
        for times in (1, 8)
        for arm, run in summaries("a-tier-with-instances-of-its-own", others={"tier": "gold", "times": times}).items()
    }
    assert kept["shared", 1] == kept["apart", 1] == kept["apart", 8] == 1
    assert (kept["shared", 8] or 0) < 0.75


def alone_or_apart(device: str, *, apart: bool) -> dict[str, Any]:
    """Figures of 20 requests, far from each other: on one instance of a device, or decoded there after an H100."""
    modelled: dict[str, Any] = {"profile": f"llama-3.1-8b@{device}", "kv_blocks": 1500}
    pools: dict[str, Any] = {}
    if apart:
        groups = {"decode": {"count": 1, "profile": modelled["profile"]}, "prefill": {"count": 1}}
        modelled = {"profile": "llama-3.1-8b@h100", "kv_blocks": 1500, "topology": {"groups": groups}}
        pools = {"layout": "split", "prefill": ["prefill"]}
    data = {
        "name": "device",
        "workload": {
            "requests": 20,
            "arrivals": {"constant": {"rate_rps": 0.05}},
            "lengths": {"prompt": {"fixed": 512}, "output": {"fixed": 64}},
        },
        "target": {"modelled": modelled},
        "arms": {"only": {"policy": "vllm_v1", "pools": pools}, "again": {"policy": "vllm_v1", "pools": pools}},
        "repeats": 1,
    }
    played = play(parse(ExperimentSpec, data), base=FOLDER, on_step=lambda step: None)
    assert not played.failures
    return {name: figure.value for name, figure in played.runs[0].metrics.items()}


def test_the_device_of_a_pool_changes_the_time_of_its_steps_and_is_no_label() -> None:
    """The median gap between tokens is that of one instance of the device which decodes, whatever computed the prompt:
    the first gap, which holds the handoff, moves it by less than a ten-thousandth. The first token takes what it takes
    the device that prefills, whatever decodes."""
    alone = {device: alone_or_apart(device, apart=False) for device in ("h100", "l4")}
    apart = {device: alone_or_apart(device, apart=True) for device in ("h100", "l4")}
    for device, figures_ in apart.items():
        assert figures_["itl_p50_ms"] == pytest.approx(alone[device]["itl_p50_ms"], rel=1e-4)
        assert figures_["ttft_mean_ms"] == alone["h100"]["ttft_mean_ms"]
    assert apart["l4"]["itl_p50_ms"] > 5 * apart["h100"]["itl_p50_ms"]
