"""Speed of the scheduler core: simulated requests per CPU second, planning cost per step, memory, start-up.

The workload of the simulator figures: Poisson arrivals near saturation, prompts lognormal with mean 512, outputs
lognormal with mean 256, at most 128 running, 512 tokens a step, no prefix cache, one row kept per request. Figures are
CPU seconds of one process; ``python_loop_ns`` is the cost of one turn of an empty loop on this machine at that moment,
to put runs on busy machines into proportion.
"""

import array
import contextlib
import math
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import harness
from bench.peers import scheduling, simulators
from bench.peers.simulators import Load
from scheduler_core.policies.presets import Capacity, build_policy
from scheduler_core.request.spec import RequestSpec
from scheduler_core.sched.instance import Instance
from scheduler_core.sim.cost import StepCost
from scheduler_core.sim.fastforward import FastForward
from scheduler_core.sim.rows import RequestRow
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.target import Affine, Profile
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.plan import GrantResult, StepResult

RATE_RPS = 11.0
RUNNING = (8, 64, 256, 1024)
QUEUED = (64, 100_000)
CAPACITY = Capacity(kv_blocks=16_384, model_length=8_192)
PROFILE = Profile(
    name="bench",
    model="bench",
    device="bench",
    dtype="none",
    cost=Affine(base_ns=8e6, prefill_token_ns=40e3, decode_request_ns=150e3, context_token_ns=20),
    residual_share=0,
    drift_share=0,
    held_out_error_share=0,
    domain={},
    steps_measured=0,
    measured_on={},
)


class Rows:
    """Rows as they end, kept as integers: 72 bytes a request."""

    def __init__(self) -> None:
        self.values = array.array("q")

    def __call__(self, row: RequestRow) -> None:
        request, arrival, started, first, end, _, _, prompt, output, preempted, hit = row
        self.values.extend((request, arrival, started or -1, first or -1, end, prompt, output, preempted, hit))


def workload(count: int, rate_rps: float, seed: int = 1) -> Iterator[PlannedRequest]:
    """Requests one by one, so that a million of them need no memory."""
    draw, at_ns = random.Random(seed), 0
    sigma = math.sqrt(math.log(1 + 0.6**2))
    for index in range(count):
        at_ns += round(draw.expovariate(rate_rps) * 1e9)
        prompt = max(1, round(draw.lognormvariate(math.log(512) - sigma**2 / 2, sigma)))
        output = max(1, round(draw.lognormvariate(math.log(256) - sigma**2 / 2, sigma)))
        yield PlannedRequest(index, at_ns, prompt, output, 4_096, index)


def policy_spec(**cache: object) -> PolicySpec:
    """The policy of the simulator figures."""
    return PolicySpec.model_validate(
        {"policy": "vllm_v1", "cache": {"prefix": "none", **cache}, "batch": {"size": 128, "token_budget": 512}}
    )


def requests_per_cpu_s(count: int, *, rate_rps: float = RATE_RPS, best_of: int = 1, **cache: object) -> float:
    """Simulated requests per CPU second, arrivals made beforehand; the best of ``best_of`` runs."""
    requests = list(workload(count, rate_rps))
    best = 0.0
    for _ in range(best_of):
        simulation = FastForward(build_policy(policy_spec(**cache), CAPACITY), StepCost(PROFILE), Rows())
        began = time.process_time()
        simulation.run(iter(requests))
        best = max(best, count / (time.process_time() - began))
    return round(best)


def requests_per_cpu_s_streamed(count: int) -> float:
    """As `requests_per_cpu_s`, with the arrivals made one by one within the time measured."""
    began = time.process_time()
    simulate_streamed(count)
    return round(count / (time.process_time() - began))


def us_per_step(running: int, *, queued: int = 0, steps: int = 60) -> float:
    """CPU microseconds to plan and complete one step in which ``running`` requests decode, with ``queued`` waiting."""
    spec = PolicySpec.model_validate(
        {"policy": "vllm_v1", "cache": {"prefix": "none"}, "batch": {"size": running, "token_budget": 65_536}}
    )
    instance = Instance(build_policy(spec, Capacity(kv_blocks=100_000, model_length=8_192)))
    for index in range(running + queued):
        instance.submit(RequestSpec(index, 0, 32, 4_000), 0)
    for _ in range(5):
        _step(instance)
    began = time.process_time()
    for _ in range(steps):
        _step(instance)
    return round((time.process_time() - began) / steps * 1e6, 1)


def _step(instance: Instance) -> None:
    planned = instance.plan(0)
    assert planned is not None
    answers = tuple([GrantResult(None)] * len(planned.plan.grants))
    instance.complete(StepResult(planned.plan.id, answers, (), 0, 1))
    instance.take_records()


def peak_mib(count: int) -> float:
    """Peak resident memory of a fresh process that simulates ``count`` requests, rows of all requests included."""
    return round(
        float(run_python(f"from bench import core; core.simulate_streamed({count}); print(core.own_peak_mib())")), 1
    )


def own_peak_mib() -> float:
    """Peak resident memory of this process; where the system tells it, without that of the one it was started from."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def simulate_streamed(count: int) -> None:
    """Simulate ``count`` requests made one by one."""
    FastForward(build_policy(policy_spec(), CAPACITY), StepCost(PROFILE), Rows()).run(workload(count, RATE_RPS))


def start_to_first_result_s() -> float:
    """Wall seconds from starting Python to the first simulated request's row."""
    began = time.monotonic()
    run_python("from bench import core; core.simulate_streamed(1)")
    return round(time.monotonic() - began, 3)


def python_loop_ns() -> float:
    """Nanoseconds of one turn of an empty loop now."""
    began = time.process_time()
    for _ in range(2_000_000):
        pass
    return round((time.process_time() - began) / 2_000_000 * 1e9, 1)


def run_python(code: str) -> str:
    """What a fresh interpreter prints when it runs ``code``."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def beside_peers(ours: dict[str, Any]) -> dict[str, Any]:
    """Figures and ratios of the peers that are installed here, and why the others have none."""
    rates = (RATE_RPS, 3 * RATE_RPS)
    near, over = (tuple(workload(10_000, rate)) for rate in rates)
    loads = {
        "requests_per_cpu_s_10k_1replica": Load(near),
        "requests_per_cpu_s_overload3x": Load(over),
        "requests_per_cpu_s_prefix_hash": Load(near[:4_000], prefix=True),
        "requests_per_cpu_s_tight_pool": Load(near[:4_000], blocks=1_045),
    }
    steps = {f"us_per_step_{running}": (running, 0) for running in RUNNING} | {"us_per_step_64_queued_100k": QUEUED}
    return {"vllm": scheduling.beside(ours, steps), **simulators.beside(ours, loads)}


def quick() -> harness.Figures:
    """All figures, at sizes that answer in time."""
    ours = _ours()
    return {**ours, "peers": beside_peers(ours)}


def _ours() -> dict[str, Any]:
    return {
        "python_loop_ns": python_loop_ns(),
        "requests_per_cpu_s_10k_1replica": requests_per_cpu_s(10_000, best_of=3),
        "requests_per_cpu_s_overload3x": requests_per_cpu_s(20_000, rate_rps=3 * RATE_RPS),
        "requests_per_cpu_s_prefix_hash": requests_per_cpu_s(4_000, prefix="hash"),
        "requests_per_cpu_s_tight_pool": requests_per_cpu_s(4_000, blocks=1_045),
        **{f"us_per_step_{running}": us_per_step(running) for running in RUNNING},
        "us_per_step_64_queued_100k": us_per_step(QUEUED[0], queued=QUEUED[1]),
        "peak_mib_100k": peak_mib(100_000),
        "start_to_first_result_s": start_to_first_result_s(),
    }


def full() -> harness.Figures:
    """The quick figures, and those of 100,000 and 1,000,000 requests."""
    return {
        **quick(),
        "requests_per_cpu_s_100k_1replica": requests_per_cpu_s(100_000),
        "requests_per_cpu_s_1m_1replica": requests_per_cpu_s_streamed(1_000_000),
        "requests_per_cpu_s_overload3x_100k": requests_per_cpu_s(100_000, rate_rps=3 * RATE_RPS),
        "requests_per_cpu_s_prefix_hash_100k": requests_per_cpu_s(100_000, prefix="hash"),
        "requests_per_cpu_s_tight_pool_100k": requests_per_cpu_s(100_000, blocks=1_045),
        "us_per_step_64_by_queued_requests": {str(n): us_per_step(64, queued=n) for n in (0, 1_000, 10_000, 100_000)},
        "peak_mib_1m": peak_mib(1_000_000),
    }


if __name__ == "__main__":
    harness.compile_core("core")
    sys.exit(harness.main("core", quick=quick, full=full))
