"""Fits a cost to what a server did: when each of its requests got its first and its last token.

The served run is played on the modelled target under the server's own settings. That says which steps there must have
been and what each computed; the times between the measured tokens then say how long such steps take. Both are repeated,
since other times make other steps. The start, a roofline from public specifications, holds what the run leaves open.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from scheduler_core.drive.driver import Driver
from scheduler_core.policies.presets import Capacity, build_instance, overlap_of
from scheduler_core.sim.executor import SimulatedExecutor
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.target import Affine, Profile
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.intervals import COMPUTE
from scheduler_core.types.plan import Phase
from scheduler_core.types.records import Admitted, Preempted, Record, Step
from scheduler_core.types.shape import causal_pairs
from scheduler_core.types.time import Ns

Floats = npt.NDArray[np.float64]

# How closely each kind of measured time is believed, and how far the fit may leave its start (one standard deviation).
_WINDOW_SHARE = 0.01
_INTERVAL_NS = 10_000_000
_START_SHARE = 0.15
_FIRST_TOKENS_APART_NS = (10_000_000, 500_000_000)
_STEPS_APART = 2


@dataclass(frozen=True, slots=True)
class Tokens:
    """When a request got its first and its last token, ns from the first arrival."""

    first_ns: Ns
    last_ns: Ns


@dataclass(frozen=True, slots=True)
class ServedRun:
    """A run to learn from: all its requests, the server's settings, and what was measured of some of the requests."""

    requests: Sequence[PlannedRequest]
    policy: PolicySpec
    kv_blocks: int
    measured: Mapping[int, Tokens]


class Played:
    """Sink of a served run as the model plays it: per request its start and tokens, per step its shape and compute.

    ``first`` and ``last`` hold (step, ns) of a request's first and last token.
    """

    def __init__(self) -> None:
        self.started: dict[int, Ns] = {}
        self.first: dict[int, tuple[int, Ns]] = {}
        self.last: dict[int, tuple[int, Ns]] = {}
        self.preemptions = 0
        self._steps: list[tuple[int, int, int, int]] = []
        self._computes: list[tuple[Ns, Ns]] = []

    def write(self, record: Record) -> None:
        """Take one record."""
        if isinstance(record, Admitted):
            self.started.setdefault(record.request, record.at_ns)
        elif isinstance(record, Preempted):
            self.preemptions += 1
        elif isinstance(record, Step):
            self._step(record)

    def _step(self, record: Step) -> None:
        number = len(self._steps)
        prefill = decode = context = pairs = 0
        for request, _epoch, start, length, phase, sampled, _hit in record.grants:
            if phase == Phase.DECODE:
                decode, context = decode + 1, context + start + length
            else:
                prefill, pairs = prefill + length, pairs + causal_pairs(start, length)
            if sampled:
                self.first.setdefault(request, (number, record.available_ns))
                self.last[request] = number, record.available_ns
        self._steps.append((prefill, decode, context, pairs))
        self._computes += [(start, end) for kind, _resource, start, end in record.lanes if kind == COMPUTE]

    @property
    def shapes(self) -> Floats:
        """Prefill tokens, decoding requests, context tokens and prefill pairs, a row per step."""
        return np.array(self._steps, np.float64)

    @property
    def lead_ns(self) -> Floats:
        """Device time between each step's compute and that of the step before."""
        begins, ends = np.array(self._computes, np.float64).T
        return np.asarray(begins - np.concatenate([[0.0], ends[:-1]]), np.float64)


def play(run: ServedRun, profile: Profile) -> Played:
    """Play ``run`` on ``profile``; deterministic."""
    sink, overlap = Played(), overlap_of(run.policy)
    Driver(
        instance=build_instance(run.policy, Capacity(run.kv_blocks, profile.model_length)),
        requests=run.requests,
        executor=SimulatedExecutor(profile=profile, overlap=overlap),
        sink=sink,
        stop=lambda: False,
        depth=overlap.steps_in_flight,
    ).run()
    return sink


def fit_served(run: ServedRun, start: Profile, *, rounds: int = 6) -> Profile:
    """``start`` with the device's times fitted to what was measured of ``run``."""
    times = _Times.of(start)
    for _ in range(rounds):
        times = _refit(run, play(run, times.on(start)), times, start)
    return times.on(start)


def fit_pool(run: ServedRun, profile: Profile, candidates: Sequence[int]) -> int:
    """The pool of ``candidates`` KV blocks under which ``run`` was most likely served.

    Requests that share beginnings which the trace does not tell need fewer blocks than their lengths say: to a model
    that knows only lengths the pool looks larger than it is.
    """
    errors = {blocks: _error(run, play(replace(run, kv_blocks=blocks), profile)) for blocks in candidates}
    return min(errors, key=lambda blocks: (errors[blocks], blocks))


def _error(run: ServedRun, played: Played) -> float:
    """Mean absolute log ratio of decode times, and of first tokens in units of the run."""
    span = max(tokens.last_ns for tokens in run.measured.values())
    decode = [
        abs(np.log((played.last[request][1] - played.first[request][1]) / (tokens.last_ns - tokens.first_ns)))
        for request, tokens in run.measured.items()
        if tokens.last_ns > tokens.first_ns
    ]
    first = [abs(played.first[request][1] - tokens.first_ns) / span for request, tokens in run.measured.items()]
    return float(np.mean(decode) + np.mean(first))


@dataclass(frozen=True, slots=True)
class _Times:
    """What is fitted, in ns: reading the weights, a token's products, a kept token, a prefill pair."""

    weights: float
    token: float
    context: float
    pair: float

    @classmethod
    def of(cls, profile: Profile) -> "_Times":
        knots, cost = profile.cost.batch_knots, profile.cost
        (place, low), (further, high) = knots[-2:]
        return cls(knots[0][1], (high - low) / (further - place), cost.context_token_ns, cost.prefill_pair_ns)

    def on(self, start: Profile) -> Profile:
        """``start`` with these times."""
        bend = max(2, round(self.weights / self.token))
        knots = tuple((place, max(self.weights, self.token * place)) for place in (1, bend, 2 * bend, 4 * bend))
        cost = Affine(
            base_ns=start.cost.base_ns,
            prefill_token_ns=start.cost.prefill_token_ns,
            decode_request_ns=start.cost.decode_request_ns,
            context_token_ns=self.context,
            prefill_pair_ns=self.pair,
            batch_knots=knots,
        )
        return start.model_copy(update={"name": f"{start.name} as served", "kind": "measured", "cost": cost})

    def logs(self) -> Floats:
        return np.log([self.weights, self.token, self.context, self.pair])

    @classmethod
    def from_logs(cls, logs: Floats) -> "_Times":
        return cls(*(float(value) for value in np.exp(logs)))

    def steps_ns(self, start: Profile, shapes: Floats) -> Floats:
        """Device time of each step."""
        prefill, decode, context, pairs = shapes.T[:4]
        products = np.maximum(self.weights, self.token * (prefill + decode))
        cost = start.cost
        fixed = cost.base_ns + cost.prefill_token_ns * prefill + cost.decode_request_ns * decode
        return np.asarray(fixed + products + self.context * context + self.pair * pairs, np.float64)


def _refit(run: ServedRun, played: Played, times: _Times, start: Profile) -> _Times:
    """Times that fit decode windows and the distances of neighbouring first tokens, given the steps of ``played``."""
    requests = list(run.measured)
    first, last = (np.array([of[request][0] for request in requests]) for of in (played.first, played.last))
    began = np.array([run.measured[request].first_ns for request in requests], np.float64)
    window = np.array([run.measured[request].last_ns for request in requests], np.float64) - began
    lasting = window > 0
    before, after = _neighbours(began, first)
    shapes, lead, prior = played.shapes, played.lead_ns, _Times.of(start).logs()

    def residuals(logs: Floats) -> Floats:
        ends = np.cumsum(_Times.from_logs(logs).steps_ns(start, shapes) + lead)
        decode = np.log((ends[last] - ends[first])[lasting] / window[lasting]) / _WINDOW_SHARE
        prefill = (ends[first[after]] - ends[first[before]] - began[after] + began[before]) / _INTERVAL_NS
        return np.concatenate([decode, prefill, (logs - prior) / _START_SHARE])

    solved = least_squares(residuals, times.logs(), loss="soft_l1", f_scale=1.0)
    return _Times.from_logs(solved.x)


def _neighbours(began: Floats, step: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Pairs of requests whose first tokens came one or two steps apart, both as measured and as played."""
    order = np.argsort(began, kind="stable")
    before, after = order[:-1], order[1:]
    apart, steps = began[after] - began[before], step[after] - step[before]
    low, high = _FIRST_TOKENS_APART_NS
    near = (apart > low) & (apart < high) & (steps > 0) & (steps <= _STEPS_APART)
    return before[near], after[near]
