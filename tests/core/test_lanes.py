"""Lanes of host, copies and device: what lies over what, what that hides, and when it is no gain."""

import random
from itertools import pairwise
from typing import Any

import pytest

from scheduler_core.drive.driver import Driver
from scheduler_core.evidence.finalise import summarise
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.policies.presets import Capacity, build_instance, overlap_of
from scheduler_core.policies.resolving import resolve, resolve_arms
from scheduler_core.sim.cost import StepCost, StepParts
from scheduler_core.sim.executor import SimulatedExecutor
from scheduler_core.sim.lanes import Lanes
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.parse import parse
from scheduler_core.spec.target import CopyTime, HostTime, Profile
from scheduler_core.spec.workload import Tier
from scheduler_core.testing.builders import ListSink, policy_spec, profile, request
from scheduler_core.types.errors import InputError
from scheduler_core.types.intervals import COMPUTE
from scheduler_core.types.overlap import Overlap
from scheduler_core.types.records import Finished, RunStarted, Step
from scheduler_core.types.shape import StepShape
from scheduler_core.types.time import ns_from_ms

MODES = [mode.value for mode in Overlap]
PARTS = ("input_prepare", "input_transfer", COMPUTE, "output_transfer", "stream_output")


def target(*, host_ms: float = 1.0, copy_ms: float = 0.5, finish_ms: float = 1.0, device_ms: float = 5.0) -> Profile:
    """Every step takes host + copy in + device + copy out + finish, whatever it computes."""
    return profile(base_ms=device_ms).model_copy(
        update={
            "host": HostTime(base_ns=ns_from_ms(host_ms), finish_base_ns=ns_from_ms(finish_ms)),
            "copies": CopyTime(input_base_ns=ns_from_ms(copy_ms), output_base_ns=ns_from_ms(copy_ms)),
        }
    )


def run(
    mode: str, requests: Any, cost: Profile, *, preset: str = "vllm_v1", blocks: int = 1000, **settings: Any
) -> Any:
    """Records and summary of a run in ``mode``, the laws checked after every step."""
    spec = policy_spec(preset, execution__overlap=mode, **settings)
    sink, capacity = ListSink(), Capacity(blocks, 10_000)
    sink.write(
        RunStarted("r", 1, "p", "q", resolve(spec).canonical(), {}, "simulation", "modelled", len(requests), blocks, 16,
                   resolve(spec).batch.token_budget or 0)
    )  # fmt: skip
    Driver(
        instance=build_instance(spec, capacity),
        requests=requests,
        executor=SimulatedExecutor(profile=cost, overlap=overlap_of(spec)),
        sink=sink,
        stop=lambda: False,
        law_interval=1,
        depth=overlap_of(spec).steps_in_flight,
    ).run()
    return sink, summarise(sink.records, arm="a", repeat=0, tiers={"default": Tier()})


def value(summary: RunSummary, name: str) -> float:
    found = summary.metrics[name].value
    assert found is not None, name
    return found


def batch(count: int = 3, output: int = 10) -> Any:
    return [request(index, 8, output) for index in range(count)]


def test_parts_add_up_to_the_step() -> None:
    cost = StepCost(target())
    parts = cost.parts(StepShape(8, 2, 30, 36, joined=1), 0)
    assert parts == StepParts._make([*map(ns_from_ms, (1, 0.5, 5, 0.5, 1, 0)), None])
    assert sum(parts[:-1]) == cost.step_ns(StepShape(8, 2, 30, 36, joined=1), 0)


@pytest.mark.parametrize("mode", MODES)
def test_a_part_never_begins_before_the_part_before_it_ended(mode: str) -> None:
    """R25, on random durations and launch times: order within a step, one step at a time on each resource."""
    draw = random.Random(mode)
    lanes, at, free, known = Lanes(Overlap(mode)), 0, dict.fromkeys(PARTS, 0), 0
    for _ in range(300):
        lengths = [draw.choice((0, draw.randint(1, 50))) for _ in PARTS]
        parts = StepParts._make([*lengths, 0, None])
        placed = lanes.place(at, parts)
        told = {lane.kind: lane for lane in placed.lanes if lane.kind != "stalled"}
        begins = [told[kind] for kind in PARTS if kind in told]
        assert [lane.end_ns - lane.start_ns for lane in begins] == [part for part in parts if part]
        assert all(later.start_ns >= earlier.end_ns for earlier, later in pairwise(begins))
        for lane in begins:
            assert lane.start_ns >= max(at, free[lane.kind])
            free[lane.kind] = lane.end_ns
        assert placed.available_ns >= placed.known_ns >= at
        at = max(at, known) if Overlap(mode).steps_in_flight == 2 else placed.known_ns
        known = placed.known_ns


def test_serial_is_the_sum_and_overlapped_the_longest_chain() -> None:
    """T5. Ten steps of 1 + 0.5 + 5 + 0.5 + 1 ms. Serial: 80. Pipelined: the finish of nine is hidden: 80 - 9 = 71.

    Schedule ahead: prepare and copies of nine lie under the compute before: 1 + 0.5 + 10 x 5 + 0.5 + 1 = 53, the
    device's own chain and the two ends of it. Three requests that are always together leave two streams nothing to do
    beside each other: as pipelined.
    """
    elapsed = {mode: value(run(mode, batch(), target())[1], "e2e_p50_ms") for mode in MODES}
    assert elapsed == {"none": 80, "pipelined": 71, "two_stream": 71, "schedule_ahead": 53}


def test_what_is_hidden_is_counted_per_run_step_and_request() -> None:
    """As above: 80 ms of work in each mode; 0, 9 and 27 of it hidden, for every request and for the run."""
    for mode, hidden in (("none", 0), ("pipelined", 9), ("schedule_ahead", 27)):
        _, summary = run(mode, batch(), target())
        assert summary.audit.violations == []
        assert value(summary, "step_work_ms") == 80
        assert value(summary, "hidden_work_ms") == value(summary, "hidden_work_mean_ms") == hidden
        assert value(summary, "step_path_ms") == 80 - hidden == value(summary, "e2e_p50_ms")
        assert value(summary, "unattributed_max_ms") == 0


def test_host_work_longer_than_compute_is_the_chain() -> None:
    """Prepare 4, finish 3, compute 2 ms, no copies: the host's thread sets the pace: 10 x 4, and 2 + 3 at the end."""
    _, summary = run("schedule_ahead", batch(), target(host_ms=4, copy_ms=0, finish_ms=3, device_ms=2))
    assert value(summary, "e2e_p50_ms") == 45


def traffic(count: int = 60, seed: int = 5) -> Any:
    draw = random.Random(seed)
    return [
        request(index, draw.randint(5, 90), draw.randint(1, 40), at_ms=draw.random() * 600, tenant=f"t{index % 3}",
                priority=index % 2)
        for index in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("preset", ["static", "vllm_v1", "sglang", "sarathi", "vtc", "nano", "reserve_max"])
@pytest.mark.parametrize("mode", MODES)
def test_every_preset_keeps_every_law_in_every_mode(mode: str, preset: str) -> None:
    """A pool of 16 blocks, far too small, so that requests are preempted while steps are in flight."""
    sink, summary = run(mode, traffic(), target(device_ms=2), preset=preset, blocks=16)
    assert summary.audit.violations == []
    assert summary.outcomes["finished"] == 60
    assert {r.request: r.output_tokens for r in sink.of(Finished)} == {r.index: r.output_tokens for r in traffic()}
    chains = [sum(end - start for kind, _, start, end in step.lanes if kind == COMPUTE) for step in sink.of(Step)]
    assert sink.of(Step)[-1].available_ns >= sum(chains)


def test_cancels_in_flight_keep_the_laws_in_every_mode() -> None:
    for mode in MODES:
        spec, sink, requests = policy_spec("vllm_v1", execution__overlap=mode), ListSink(), traffic()
        driver = Driver(
            instance=build_instance(spec, Capacity(16, 10_000)),
            requests=requests,
            executor=SimulatedExecutor(profile=target(), overlap=overlap_of(spec)),
            sink=sink,
            stop=lambda: False,
            cancels=[(index, ns_from_ms(40 * index + 3)) for index in range(0, 60, 3)],
            law_interval=1,
            depth=overlap_of(spec).steps_in_flight,
        )
        report = driver.run()
        assert sum(report.outcomes.values()) == 60
        assert report.outcomes.get("cancelled", 0) > 0


def test_more_overlap_that_shortens_nothing_is_no_gain() -> None:
    """R12. Device steps of 5 ms whatever they hold. Two groups of requests that come half a step apart.

    One at a time, the groups merge after a step. Two streams keep them apart: a group's prepare and copies lie under
    the other's compute, so more is hidden; but each round of tokens now takes two steps of the device.
    """
    requests = [request(index, 8, 10, at_ms=0 if index < 4 else 4) for index in range(8)]
    _, plain = run("none", requests, target())
    _, streams = run("two_stream", requests, target())
    assert value(streams, "hidden_work_share") > value(plain, "hidden_work_share") + 0.2
    assert value(streams, "e2e_mean_ms") > value(plain, "e2e_mean_ms")


def test_a_limit_ends_a_request_without_a_wasted_step() -> None:
    """Planned on promises, a request is not planned beyond its limit: ten tokens take ten steps."""
    sink, _ = run("schedule_ahead", batch(1), target())
    assert len(sink.of(Step)) == 10


def test_a_stop_nobody_knew_of_wastes_the_step_behind_it() -> None:
    """The limit is 100, the answer 10 tokens: the eleventh step was planned before the tenth told."""
    sink, summary = run("schedule_ahead", [request(0, 8, 10, output_limit=100)], target())
    assert len(sink.of(Step)) == 11
    assert [record.output_tokens for record in sink.of(Finished)] == [10]
    assert summary.audit.violations == []


@pytest.mark.parametrize(
    "target", [{"torch": {}}, {"modelled": {"topology": {"groups": {"a": {"count": 2}}}}}], ids=["torch", "cluster"]
)
def test_what_runs_its_steps_one_by_one_refuses_an_overlap(target: Any) -> None:
    layout = "replicas" if "modelled" in target else "single"
    arm = {"policy": "vllm_v1", "pools": {"layout": layout}, "execution": {"overlap": "pipelined"}}
    workload = {
        "requests": 5,
        "arrivals": {"poisson": {"rate_rps": 1}},
        "lengths": {"prompt": {"fixed": 5}, "output": {"fixed": 5}},
    }
    spec = parse(ExperimentSpec, {"name": "x", "workload": workload, "target": target, "arms": {"a": arm}})
    with pytest.raises(InputError, match=r"arms\.a\.execution\.overlap.*(one instance|pipelined needs)"):
        resolve_arms(spec, None)
