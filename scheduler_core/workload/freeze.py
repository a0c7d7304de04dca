"""Freezing: from a workload spec to the arrival plan that every arm replays."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import accumulate

from scheduler_core.spec.workload import Cancels, Tenant, Tier, WorkloadSpec
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.errors import InputError, Problem
from scheduler_core.types.time import NS_PER_S, Ns, ns_from_ms
from scheduler_core.workload import replay, synthetic
from scheduler_core.workload.distributions import exact
from scheduler_core.workload.others import with_others
from scheduler_core.workload.plan import ArrivalPlan
from scheduler_core.workload.profiles import load_profile
from scheduler_core.workload.samples import with_samples
from scheduler_core.workload.slots import LATEST_NS, MOST_BLOCK_IDS, Offered, Slot
from scheduler_core.workload.traces.data import TraceData
from scheduler_core.workload.uniform import ONE, Stream


def freeze(spec: WorkloadSpec, *, trace: TraceData | None = None) -> ArrivalPlan:
    """The arrival plan of ``spec``: the same integers in every process, under every hash seed, on every machine.

    ``trace`` holds the rows of ``spec.trace``, read by the caller with `read_trace`. `InputError` names the field that
    cannot be satisfied.
    """
    if spec.trace is not None and trace is None:
        raise InputError([Problem("trace", "its rows are missing: read the file before freezing")])
    if spec.trace is None and trace is not None:
        raise InputError([Problem("trace", "rows were given for a workload that names no trace")])
    offered = _offer(spec, trace)
    requests = tuple(_requests(spec, offered))
    if spec.others is not None:
        requests = with_others(requests, spec.others)
    notes = offered.notes
    if spec.samples is not None and spec.samples > 1:
        notes += (f"each of {len(requests)} prompts is answered {spec.samples} times, by as many requests",)
        requests = with_samples(requests, spec.samples)
    return ArrivalPlan(requests, offered.block_size, notes, offered.observed_hit_share)


def _offer(spec: WorkloadSpec, trace: TraceData | None) -> Offered:
    if trace is not None:
        return replay.offer(spec, trace)
    if spec.profile is None:
        assert spec.arrivals is not None and spec.lengths is not None  # validated by the spec
        return synthetic.offer(spec, spec.arrivals, spec.lengths)
    profile = load_profile(spec.profile)
    assert spec.rate_rps is not None  # validated by the spec
    offered = synthetic.offer(spec, profile.arrivals(spec.rate_rps), profile.lengths(spec.lengths_scale))
    return Offered(offered.slots, offered.outputs, offered.block_size, (*profile.notes(), *offered.notes))


class _Mix:
    """Names drawn by share; names are taken in sorted order, so the order of writing does not matter."""

    def __init__(self, items: Mapping[str, Tier] | Mapping[str, Tenant], stream: Stream) -> None:
        self._names = sorted(items)
        self._stream = stream
        total = sum(exact(items[name].share) for name in self._names)
        sums = accumulate(exact(items[name].share) / total for name in self._names)
        self._ends = [round(end * ONE) for end in sums]

    def of(self, who: int) -> str:
        if len(self._names) == 1:
            return self._names[0]
        return self._names[bisect_right(self._ends, self._stream.at(who))]


class _Cancels:
    """When each request's client gives up."""

    def __init__(self, spec: Cancels, seed: int) -> None:
        self._share = round(exact(spec.share) * ONE)
        self._from, self._span = ns_from_ms(spec.from_ms), ns_from_ms(spec.to_ms) - ns_from_ms(spec.from_ms)
        self._who, self._when = Stream(seed, "cancels"), Stream(seed, "cancel time")

    def of(self, index: int) -> Ns | None:
        if self._who.at(index) >= self._share:
            return None
        return self._from + self._when.at(index) * self._span // ONE


def _requests(spec: WorkloadSpec, offered: Offered) -> Iterator[PlannedRequest]:
    limit = _limit(spec, offered)
    tenants = _Mix(spec.tenants, Stream(spec.seed, "tenant"))
    tiers = _Mix(spec.tiers, Stream(spec.seed, "tier"))
    seeds = Stream(spec.seed, "request")
    cancels = _Cancels(spec.cancels, spec.seed) if spec.cancels is not None else None
    block_ids = 0
    for index, slot in enumerate(offered.slots):
        block_ids += len(slot.prefix_blocks)
        if slot.arrival_ns > LATEST_NS or block_ids > MOST_BLOCK_IDS:
            raise InputError([_too_much(spec, index, slot)])
        tier = tiers.of(slot.who) if slot.tier is None else slot.tier
        yield PlannedRequest(
            index=index,
            arrival_ns=slot.arrival_ns,
            prompt_tokens=slot.prompt_tokens,
            output_tokens=slot.output_tokens,
            output_limit=slot.output_tokens if limit is None else limit,
            seed=seeds.at(index) >> 1,
            tenant=tenants.of(slot.who) if slot.tenant is None else slot.tenant,
            tier=tier,
            session=slot.session,
            turn=slot.turn,
            after=slot.after,
            prefix_blocks=slot.prefix_blocks,
            priority=spec.tiers[tier].priority,
            cancel_ns=None if cancels is None else cancels.of(index),
        )


def _limit(spec: WorkloadSpec, offered: Offered) -> int | None:
    """The declared output limit of every request; None where each declares its own length."""
    if spec.output_limit == "exact":
        return None
    longest = max(offered.outputs)
    if spec.output_limit == "longest":
        return longest
    if spec.output_limit < longest:
        over = sum(output > spec.output_limit for output in offered.outputs)
        message = (
            f"{spec.output_limit} is below the longest output of this workload ({longest} tokens; {over} of "
            f'{len(offered.outputs)} requests are longer); use at least {longest}, or "longest"'
        )
        raise InputError([Problem("output_limit", message)])
    return spec.output_limit


def _too_much(spec: WorkloadSpec, index: int, slot: Slot) -> Problem:
    if slot.arrival_ns <= LATEST_NS:
        message = f"the plan would hold over {MOST_BLOCK_IDS:,} prefix block ids; use larger blocks or fewer requests"
        return Problem("block_size", message)
    years = slot.arrival_ns // (NS_PER_S * 86_400 * 365)
    where = next(name for name in ("trace", "profile", "arrivals") if getattr(spec, name) is not None)
    return Problem(where, f"request {index} would arrive after {years} years; raise the rate or shorten the think time")
