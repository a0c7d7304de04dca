"""Choosing how much load an experiment offers, from a calibrated profile: pure, deterministic, no clock.

Capacity is what a policy completes per second while it never runs out of waiting requests: the rate at which its queue
stops being stable. A demo is sized to a share of the best arm's capacity.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from scheduler_core.drive.driver import Driver
from scheduler_core.policies.presets import Capacity, build_instance
from scheduler_core.sim.executor import SimulatedExecutor
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.target import Profile
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.reasons import Outcome
from scheduler_core.types.records import Arrived, Finished, Record, Step
from scheduler_core.types.time import Ns, s_from_ns
from scheduler_core.workload.plan import ArrivalPlan

LOAD_SHARE = 0.7
RUN_S = 6.0
RUN_LIMIT_S = 7.5
FEWEST_REQUESTS = 24
WANTED_REQUESTS = 48  # 95th percentiles need 20
MOST_REQUESTS = 2000
SMALLEST_SCALE = 0.02
SCALE_STEPS = 6
SHRINKS = 5
BURST_REQUESTS = 96

Plans = Callable[[int, float, float], ArrivalPlan]
Arms = Callable[[ArrivalPlan], Mapping[str, PolicySpec]]


@dataclass(frozen=True)
class Machine:
    """What runs are served on."""

    profile: Profile
    kv_blocks: int

    @property
    def capacity(self) -> Capacity:
        """As policies see it."""
        return Capacity(self.kv_blocks, self.profile.model_length, self.profile)


@dataclass(frozen=True)
class Size:
    """A chosen load. ``run_s`` is the predicted duration of a run of each arm, start-up not included."""

    requests: int
    rate_rps: float
    lengths_scale: float
    capacity_rps: float
    run_s: dict[str, float]

    @property
    def load_share(self) -> float:
        """Offered rate as a share of the best arm's capacity."""
        return self.rate_rps / self.capacity_rps


@dataclass(frozen=True)
class Served:
    """A simulated run: when requests finished, and what they waited, each in order of finishing; without noise."""

    finished_s: list[float]
    ttft_s: list[float]
    tpot_s: list[float]

    @property
    def duration_s(self) -> float:
        """To the end of the last request."""
        return self.finished_s[-1] if self.finished_s else 0.0


def simulate(policy: PolicySpec, requests: Sequence[PlannedRequest], machine: Machine) -> Served:
    """Serve ``requests`` under ``policy`` on the modelled machine."""
    times = _Times()
    driver = Driver(
        instance=build_instance(policy, machine.capacity),
        requests=requests,
        executor=SimulatedExecutor(profile=machine.profile, block_size=policy.cache.block_size or 16),
        sink=times,
        stop=lambda: False,
        law_interval=4096,
    )
    driver.run()
    return times.served()


def capacity_rps(policy: PolicySpec, plan: ArrivalPlan, machine: Machine) -> float:
    """Requests per second completed while all of ``plan`` waits from the start; 0 when too few can be served.

    Taken between the 10th and the 90th hundredth of completions: neither filling up nor draining counts.
    """
    burst = [replace(request, arrival_ns=0, after=()) for request in plan.requests]
    finished = simulate(policy, burst, machine).finished_s
    low, high = len(finished) // 10, len(finished) * 9 // 10
    if high - low < 2 or finished[high] <= finished[low]:
        return 0.0 if len(finished) < 2 else (len(finished) - 1) / max(finished[-1], 1e-9)
    return (high - low) / (finished[high] - finished[low])


def choose(plans: Plans, arms: Arms, machine: Machine, *, scale_limit: float = 1.0) -> Size:
    """The load at which a run lasts about `RUN_S` at `LOAD_SHARE` of the best arm's capacity.

    Args:
        plans: The frozen plan of (requests, rate in requests per second, lengths scale).
        arms: The policies to be compared on such a plan.
        machine: Profile and pool.
        scale_limit: Longest lengths that fit the model, as a scale.

    Lengths are shrunk until enough requests fit into a run of every arm for its percentiles to mean something; on a
    fast machine lengths stay and the number of requests grows.
    """
    scale, best = _scale(plans, arms, machine, scale_limit)
    for _ in range(SHRINKS):
        size = _at(scale, best, plans, arms, machine)
        longest = max(size.run_s.values())
        if longest <= RUN_LIMIT_S or scale <= SMALLEST_SCALE:
            break
        scale = max(_rounded(scale * RUN_LIMIT_S / longest * 0.95), SMALLEST_SCALE)
        best = _best(plans(BURST_REQUESTS, 1.0, scale), arms, machine)
    return size


def _at(scale: float, best: float, plans: Plans, arms: Arms, machine: Machine) -> Size:
    """The load at a lengths scale: as many requests as fit, but not fewer than `WANTED_REQUESTS` if they exist."""
    rate = _rounded(LOAD_SHARE * best)
    requests = _bounded(round(rate * RUN_S))
    while True:
        plan = plans(requests, rate, scale)
        run_s = {name: simulate(policy, plan.requests, machine).duration_s for name, policy in arms(plan).items()}
        fitting = max(round(requests * RUN_LIMIT_S / max(run_s.values()) * 0.97), WANTED_REQUESTS)
        if fitting >= requests:
            return Size(requests, rate, scale, best, run_s)
        requests = fitting


def _scale(plans: Plans, arms: Arms, machine: Machine, limit: float) -> tuple[float, float]:
    """The largest lengths scale at which `WANTED_REQUESTS` fit into a run, and the best arm's capacity there."""
    wanted = WANTED_REQUESTS / RUN_S / LOAD_SHARE

    def best_at(scale: float) -> float:
        return _best(plans(BURST_REQUESTS, wanted, scale), arms, machine)

    low, high = SMALLEST_SCALE, max(limit, SMALLEST_SCALE)
    at_high = best_at(high)
    if at_high >= wanted:
        return _rounded(high), at_high
    for _ in range(SCALE_STEPS):
        middle = (low * high) ** 0.5
        if best_at(middle) >= wanted:
            low = middle
        else:
            high = middle
    scale = _rounded(low)
    return scale, best_at(scale)


def _best(burst: ArrivalPlan, arms: Arms, machine: Machine) -> float:
    return max(capacity_rps(policy, burst, machine) for policy in arms(burst).values())


def _bounded(requests: int) -> int:
    return min(max(requests, FEWEST_REQUESTS), MOST_REQUESTS)


def _rounded(value: float) -> float:
    """Two significant digits: a figure people can repeat."""
    return float(f"{value:.2g}")


class _Times:
    """A sink that keeps arrival, first token and end of each request, and nothing else."""

    def __init__(self) -> None:
        self._arrived: dict[int, Ns] = {}
        self._first: dict[int, Ns] = {}
        self._ended: list[Finished] = []

    def write(self, record: Record) -> None:
        if isinstance(record, Arrived):
            self._arrived[record.request] = record.at_ns
        elif isinstance(record, Step):
            for request, _, _, _, _, sampled, _ in record.grants:
                if sampled:
                    self._first.setdefault(request, record.available_ns)
        elif isinstance(record, Finished) and record.outcome == Outcome.FINISHED:
            self._ended.append(record)

    def served(self) -> Served:
        ended = self._ended
        return Served(
            finished_s=[s_from_ns(end.at_ns) for end in ended],
            ttft_s=[s_from_ns(self._first[end.request] - self._arrived[end.request]) for end in ended],
            tpot_s=[
                s_from_ns(end.at_ns - self._first[end.request]) / (end.output_tokens - 1)
                for end in ended
                if end.output_tokens > 1
            ],
        )
