"""Short ways to build what tests of policies and executors need; every default is harmless."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scheduler_core.cluster.build import Site, build_cluster
from scheduler_core.cluster.cluster import Cluster
from scheduler_core.drive.cluster import ClusterDriver
from scheduler_core.drive.driver import Driver, DriveReport
from scheduler_core.policies.presets import Capacity, build_policy, dual_batch_of
from scheduler_core.request.spec import RequestSpec
from scheduler_core.sched.instance import Instance
from scheduler_core.sched.plan import Completed, Ended, Planned
from scheduler_core.sim.cost import StepCost
from scheduler_core.sim.executor import SimulatedExecutor, TrueOutputs
from scheduler_core.spec.events import EventsSpec
from scheduler_core.spec.parse import parse
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.speculative import Speculative
from scheduler_core.spec.target import Affine, HostLink, Profile
from scheduler_core.spec.topology import InstanceGroup, Topology
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.plan import GrantResult, StepResult
from scheduler_core.types.records import Record
from scheduler_core.types.time import Ns, ns_from_ms


class ListSink:
    """Keeps every record."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def write(self, record: Record) -> None:
        self.records.append(record)

    def of(self, *kinds: type[Record]) -> list[Any]:
        """Records of these kinds, in order."""
        return [record for record in self.records if isinstance(record, kinds)]


def profile(
    *,
    base_ms: float = 1.0,
    prefill_token_ms: float = 0.0,
    decode_request_ms: float = 0.0,
    context_token_ms: float = 0.0,
    residual_share: float = 0.0,
    drift_share: float = 0.0,
    **speculative: Any,
) -> Profile:
    """A profile with the given step cost; by default every step takes 1 ms, whatever it computes.

    KV takes 1,000 bytes a token, and copies go at 1 MB per ms after a latency of 0.1 ms. ``speculative`` says what a
    draft is worth there; without it nobody knows.
    """
    return Profile(
        name="test",
        model="none",
        device="none",
        dtype="none",
        cost=Affine(
            base_ns=ns_from_ms(base_ms),
            prefill_token_ns=ns_from_ms(prefill_token_ms),
            decode_request_ns=ns_from_ms(decode_request_ms),
            context_token_ns=ns_from_ms(context_token_ms),
        ),
        link=HostLink(token_bytes=1000, bytes_per_s=1e9, latency_ns=1e5),
        speculative=parse(Speculative, speculative) if speculative else None,
        residual_share=residual_share,
        drift_share=drift_share,
        held_out_error_share=0,
        domain={},
        steps_measured=0,
        measured_on={},
    )


def request(index: int, prompt: int, output: int, *, at_ms: float = 0.0, **changes: Any) -> PlannedRequest:
    """A planned request; the declared limit is the true length unless ``output_limit`` says otherwise."""
    values = {"output_limit": output, "seed": index, **changes}
    return PlannedRequest(index, ns_from_ms(at_ms), prompt, output, **values)


def policy_spec(policy: str, **settings: Any) -> PolicySpec:
    """A spec from dotted settings with double underscores: ``batch__size=2``."""
    data: dict[str, Any] = {"policy": policy}
    for name, value in settings.items():
        section, _, key = name.partition("__")
        data.setdefault(section, {})[key] = value
    return parse(PolicySpec, data)


@dataclass(frozen=True)
class Played:
    """A finished simulated run."""

    report: DriveReport
    sink: ListSink
    instance: Instance


def play(
    spec: PolicySpec,
    requests: Sequence[PlannedRequest],
    *,
    capacity: Capacity = Capacity(1000, 10_000),  # noqa: B008 - frozen
    target: Profile | None = None,
    law_interval: int = 1,
    **outside: Any,
) -> Played:
    """Play ``requests`` on the modelled target, checking the laws after every step and keeping plan digests.

    ``outside``: cancels, patience, foresight and resets, as `Driver` takes them.
    """
    target = target or profile()
    capacity = replace(capacity, profile=capacity.profile or target)
    instance, sink = Instance(build_policy(spec, capacity)), ListSink()
    driver = Driver(
        instance=instance,
        requests=requests,
        executor=SimulatedExecutor(
            profile=target, dual_batch=dual_batch_of(spec), block_size=instance.policy.limits.block_size
        ),
        sink=sink,
        stop=lambda: False,
        **outside,
        law_interval=law_interval,
        keep_digests=True,
    )
    return Played(driver.run(), sink, instance)


def play_cluster(
    spec: PolicySpec,
    requests: Sequence[PlannedRequest],
    groups: Mapping[str, int],
    *,
    capacity: Capacity = Capacity(1000, 10_000),  # noqa: B008 - frozen
    target: Profile | None = None,
    cancels: Iterable[tuple[int, Ns]] = (),
    law_interval: int = 1,
    **links: Any,
) -> tuple[DriveReport, ListSink, Cluster]:
    """Play ``requests`` on a modelled cluster, checking the laws of an instance after every step of it.

    ``groups`` are instances by name, ``links`` further fields of the `Topology`; ``outages`` as an experiment's
    events have them.
    """
    outages = list(links.pop("outages", ()))
    profile_, sink, outputs = target or profile(), ListSink(), TrueOutputs()
    topology = Topology(groups={name: InstanceGroup(count=count) for name, count in groups.items()}, **links)
    cost = StepCost(profile_)
    site = Site(
        topology,
        dict.fromkeys(groups, capacity),
        lambda _, tokens: cost.duration_ns(tokens, 0, 0, 0, 0),
        pace=lambda _, requests, tokens: cost.decode_ns(requests, tokens, 0),
        events=parse(EventsSpec, {"outages": outages}),
    )
    cluster = build_cluster(spec, site)
    driver = ClusterDriver(
        cluster=cluster,
        requests=requests,
        executors=[SimulatedExecutor(profile=profile_, outputs=outputs) for _ in cluster.members],
        sink=sink,
        stop=lambda: False,
        cancels=cancels,
        law_interval=law_interval,
    )
    return driver.run(), sink, cluster


class Stepper:
    """Drives an instance by hand, step by step, with the laws checked after every change."""

    def __init__(self, spec: PolicySpec, capacity: Capacity, **options: Any) -> None:
        self.instance = Instance(build_policy(spec, capacity), **options)
        self.now: Ns = 0
        self.records: list[Record] = []

    def submit(self, index: int, prompt: int, limit: int = 1000, **changes: Any) -> Ended | None:
        """Submit a request that arrives now."""
        values = {"arrival_ns": self.now, "seed": index, **changes}
        ended = self.instance.submit(
            RequestSpec(id=index, prompt_tokens=prompt, output_limit=limit, **values), self.now
        )
        self.instance.check()
        return ended

    def plan(self) -> Planned:
        """Plan one step at the current time; there must be something to do."""
        planned = self.try_plan()
        assert planned is not None
        return planned

    def try_plan(self) -> Planned | None:
        """Plan one step at the current time, or None when there is nothing to do."""
        planned = self.instance.plan(self.now)
        self.records += self.instance.take_records()
        self.instance.check()
        return planned

    def complete(
        self, planned: Planned, *, last: Sequence[int] = (), accepted: Mapping[int, int] | None = None
    ) -> Completed:
        """Answer a step: every sampling grant yields a token, the last one for requests in ``last``.

        ``accepted`` drafts of a request come before it.
        """
        self.now += 1
        more = accepted or {}
        answers = tuple(
            GrantResult(None, last=g.samples and g.request in last, accepted=more.get(g.request, 0))
            for g in planned.plan.grants
        )
        completed = self.instance.complete(StepResult(planned.plan.id, answers, (), self.now - 1, self.now))
        self.instance.check()
        return completed

    def step(self, *, last: Sequence[int] = ()) -> dict[int, int]:
        """Plan and complete one step; returns granted tokens by request, in grant order (empty: nothing to do)."""
        planned = self.try_plan()
        if planned is None:
            return {}
        self.complete(planned, last=last)
        return grants_of(planned)

    def plan_blocks(self) -> tuple[int, ...]:
        """Plan and complete one step; returns the blocks that its newest grant added."""
        planned = self.plan()
        self.complete(planned)
        return planned.plan.grants[-1].new_blocks


def grants_of(planned: Planned) -> dict[int, int]:
    """Granted tokens by request, in grant order."""
    return {grant.request: grant.length for grant in planned.plan.grants}
