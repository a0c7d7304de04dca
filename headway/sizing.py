"""Choosing how much load an experiment offers, from a calibrated profile: pure, deterministic, no clock.

Capacity is what a policy completes per second while it never runs out of waiting requests: the rate at which its queue
stops being stable. A demo is sized to a share of the best arm's capacity: the lowest at which the model says that the
first arm's users wait plainly longer than the others'. What is then measured decides all the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from scheduler_core.policies.presets import Capacity, build_policy
from scheduler_core.sim.cost import StepCost
from scheduler_core.sim.fastforward import FastForward
from scheduler_core.sim.rows import RequestRow
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.target import Profile
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.reasons import Outcome
from scheduler_core.types.time import s_from_ns
from scheduler_core.workload.plan import ArrivalPlan

LOAD_SHARES = (0.7, 0.8, 0.9, 1.0)
PLAINLY = 0.9
"""Tail of the time to the end, relative to the first arm's, at which a difference is plain on a noisy machine."""

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
    """A chosen load.

    ``run_s`` is the predicted duration of a run of each arm, start-up not included; ``e2e_p95_s`` the predicted tail of
    its requests' times from arrival to end.
    """

    requests: int
    rate_rps: float
    lengths_scale: float
    capacity_rps: float
    run_s: dict[str, float]
    e2e_p95_s: dict[str, float]

    @property
    def load_share(self) -> float:
        """Offered rate as a share of the best arm's capacity."""
        return self.rate_rps / self.capacity_rps

    @property
    def plain(self) -> bool:
        """Whether every other arm's tail is plainly shorter than the first arm's."""
        first, *others = self.e2e_p95_s.values()
        return all(other <= PLAINLY * first for other in others)


@dataclass(frozen=True)
class Served:
    """A simulated run: when requests finished, and what they waited, each in order of finishing; without noise."""

    finished_s: list[float]
    e2e_s: list[float]
    ttft_s: list[float]
    tpot_s: list[float]

    @property
    def duration_s(self) -> float:
        """To the end of the last request."""
        return self.finished_s[-1] if self.finished_s else 0.0


def simulate(policy: PolicySpec, requests: Sequence[PlannedRequest], machine: Machine) -> Served:
    """Serve ``requests`` under ``policy`` on the modelled machine."""
    rows: list[RequestRow] = []
    FastForward(build_policy(policy, machine.capacity), StepCost(machine.profile), rows.append).run(requests)
    ended = [row for row in rows if row.outcome == Outcome.FINISHED]
    first_ns = [row.first_token_ns if row.first_token_ns is not None else row.end_ns for row in ended]
    return Served(
        finished_s=[s_from_ns(row.end_ns) for row in ended],
        e2e_s=[s_from_ns(row.end_ns - row.arrival_ns) for row in ended],
        ttft_s=[s_from_ns(first - row.arrival_ns) for first, row in zip(first_ns, ended, strict=True)],
        tpot_s=[
            s_from_ns(row.end_ns - first) / (row.output_tokens - 1)
            for first, row in zip(first_ns, ended, strict=True)
            if row.output_tokens > 1
        ],
    )


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
    """The lowest of `LOAD_SHARES` at which the difference between the arms is `Size.plain`, else the highest.

    Args:
        plans: The frozen plan of (requests, rate in requests per second, lengths scale).
        arms: The policies to be compared on such a plan, the one to start from first.
        machine: Profile and pool.
        scale_limit: Longest lengths that fit the model, as a scale.

    A run lasts about `RUN_S`. Lengths are shrunk until enough requests fit into a run of every arm for its percentiles
    to mean something; on a fast machine lengths stay and the number of requests grows.
    """
    for share in LOAD_SHARES:
        size = _sized(share, plans, arms, machine, scale_limit)
        if size.plain:
            break
    return size


def _sized(share: float, plans: Plans, arms: Arms, machine: Machine, scale_limit: float) -> Size:
    scale, best = _scale(share, plans, arms, machine, scale_limit)
    for _ in range(SHRINKS):
        size = _at(share * best, scale, best, plans, arms, machine)
        longest = max(size.run_s.values())
        if longest <= RUN_LIMIT_S or scale <= SMALLEST_SCALE:
            break
        scale = max(_rounded(scale * RUN_LIMIT_S / longest * 0.95), SMALLEST_SCALE)
        best = _best(plans(BURST_REQUESTS, 1.0, scale), arms, machine)
    return size


def _at(rate_rps: float, scale: float, best: float, plans: Plans, arms: Arms, machine: Machine) -> Size:
    """The load at a lengths scale: as many requests as fit, but not fewer than `WANTED_REQUESTS` if they exist."""
    rate = _rounded(rate_rps)
    requests = _bounded(round(rate * RUN_S))
    while True:
        plan = plans(requests, rate, scale)
        served = {name: simulate(policy, plan.requests, machine) for name, policy in arms(plan).items()}
        run_s = {name: run.duration_s for name, run in served.items()}
        fitting = max(round(requests * RUN_LIMIT_S / max(run_s.values()) * 0.97), WANTED_REQUESTS)
        if fitting >= requests:
            return Size(requests, rate, scale, best, run_s, {name: p95(run.e2e_s) for name, run in served.items()})
        requests = fitting


def _scale(share: float, plans: Plans, arms: Arms, machine: Machine, limit: float) -> tuple[float, float]:
    """The largest lengths scale at which `WANTED_REQUESTS` fit into a run, and the best arm's capacity there."""
    wanted = WANTED_REQUESTS / RUN_S / share

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


def p95(values: Sequence[float]) -> float:
    """The value at the 95th hundredth of the ranks."""
    ordered = sorted(values)
    return ordered[int(0.95 * (len(ordered) - 1))]
