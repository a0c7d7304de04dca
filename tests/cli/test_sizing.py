"""Sizing: capacity by hand, and a demo that fits its time on slow and on fast machines."""

from dataclasses import replace
from functools import cache

import pytest

from headway import demo, sizing
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.target import Affine, Profile
from scheduler_core.spec.workload import WorkloadSpec
from scheduler_core.types.errors import InputError
from scheduler_core.workload.freeze import freeze
from tests.cli.conftest import slow_profile

START_UP_S = 4.0


def _profile(profile: Profile, **cost: float) -> Profile:
    values = {"base_ns": 0.0, "prefill_token_ns": 0.0, "decode_request_ns": 0.0, "context_token_ns": 0.0, **cost}
    return profile.model_copy(update={"cost": Affine(**values)})


def test_capacity_of_static_batches_by_hand(profile: Profile) -> None:
    """A step takes 10 ms whatever is in it; 40 requests of 8 prompt and 5 output tokens in batches of 4.

    One prefill step yields the first token, four decode steps the rest: 50 ms for 4 requests, so 80 per second.
    """
    workload = WorkloadSpec.model_validate(
        {
            "arrivals": {"constant": {"rate_rps": 1}},
            "lengths": {"prompt": {"fixed": 8}, "output": {"fixed": 5}},
            "requests": 40,
        }
    )
    machine = sizing.Machine(_profile(profile, base_ns=10e6), kv_blocks=256)
    policy = PolicySpec.model_validate({"policy": "static", "batch": {"size": 4}})
    assert sizing.capacity_rps(policy, freeze(workload), machine) == pytest.approx(80, rel=0.02)


def test_capacity_does_not_depend_on_when_requests_would_come(profile: Profile) -> None:
    def at(rate: float) -> float:
        spec = WorkloadSpec(profile="azure-2023-conv", requests=60, rate_rps=rate, lengths_scale=0.1, seed=1)
        policy = PolicySpec.model_validate({"policy": "vllm_v1", "batch": {"token_budget": 256}})
        return sizing.capacity_rps(policy, freeze(spec), sizing.Machine(profile, 1024))

    assert at(0.5) == at(500.0)


MACHINES = {
    "very slow": {"base_ns": 20e6, "prefill_token_ns": 1e6, "decode_request_ns": 4e6, "context_token_ns": 2000},
    "two cores": {"base_ns": 4e6, "prefill_token_ns": 1e5, "decode_request_ns": 1e6, "context_token_ns": 100},
    "accelerator": {"base_ns": 2e6, "prefill_token_ns": 2e3, "decode_request_ns": 5e3, "context_token_ns": 5},
}


@cache
def _demo(name: str) -> demo.Demo:
    """The demo of a machine; sizing one takes seconds of simulation."""
    return demo.build(_profile(slow_profile(), **MACHINES[name]))


@pytest.mark.parametrize("name", MACHINES)
def test_the_demo_fits_its_time_on_any_machine(name: str) -> None:
    made = _demo(name)
    size = made.size
    runs = len(made.experiment.runs())
    assert runs == 15
    assert any(size.load_share == pytest.approx(share, rel=0.06) for share in sizing.LOAD_SHARES)
    assert size.plain
    assert sum(size.run_s.values()) * made.experiment.repeats + START_UP_S * runs <= 180
    assert sizing.FEWEST_REQUESTS <= size.requests <= sizing.MOST_REQUESTS
    assert size.lengths_scale <= 1


def test_a_faster_machine_gets_more_or_longer_requests() -> None:
    slow, fast = (_demo(name).size for name in ("two cores", "accelerator"))
    assert fast.rate_rps > slow.rate_rps
    assert fast.lengths_scale >= slow.lengths_scale


def test_sizing_is_a_function_of_the_profile() -> None:
    again = demo.build(_profile(slow_profile(), **MACHINES["very slow"]))
    assert again == _demo("very slow")


def test_the_arms_differ_in_scheduling_only() -> None:
    arms = _demo("two cores").experiment.arms
    assert next(iter(arms)) == "static"
    assert [arm.policy for arm in arms.values()] == ["static", "vllm_v1", "vllm_v1"]
    assert len({(arm.cache.blocks, arm.cache.block_size) for arm in arms.values()}) == 1
    budgets = [arm.batch.token_budget for arm in list(arms.values())[1:]]
    assert budgets[0] and budgets[1] and budgets[0] > budgets[1]


def test_every_request_fits_the_pool_and_the_model(profile: Profile) -> None:
    made = _demo("accelerator")
    plan = freeze(made.experiment.workload)
    longest = max(request.prompt_tokens + request.output_limit for request in plan.requests)
    assert longest <= min(profile.model_length, demo.KV_BLOCKS * demo.BLOCK_SIZE)


def test_the_demo_says_where_its_traffic_comes_from() -> None:
    assert "synthetic" in _demo("two cores").traffic


def test_a_trace_is_played_by_its_own_rows(profile: Profile, tmp_path: object) -> None:
    from pathlib import Path

    from scheduler_core.spec.workload import Trace
    from scheduler_core.workload.traces.reader import read_trace

    path = Path(str(tmp_path)) / "burst.csv"
    head = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    path.write_text(head + "".join(f"{5 + n},ChatGPT,{50 + n},{10 + n % 7},0,Conversation log\n" for n in range(100)))
    rows = read_trace(path, Trace(file=str(path)))
    made = demo.build(profile, trace=rows, file=path)
    trace = made.experiment.workload.trace
    assert trace is not None
    assert (trace.file, trace.format) == (str(path), "burstgpt")
    assert "burst.csv" in made.traffic
    with pytest.raises(InputError, match="needs at least"):
        few = replace(rows, prompts=rows.prompts[:5], outputs=rows.outputs[:5], arrivals_ns=rows.arrivals_ns[:5])
        demo.build(profile, trace=few, file=path)
