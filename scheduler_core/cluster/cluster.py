"""Several instances as one: the facade through which a driver uses them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler_core.cluster.load import Load, Observer
from scheduler_core.cluster.router import Choice, Router
from scheduler_core.request.spec import RequestSpec
from scheduler_core.sched.instance import Instance
from scheduler_core.sched.plan import Completed, Ended
from scheduler_core.types.errors import CallerError, LawError
from scheduler_core.types.reasons import Outcome
from scheduler_core.types.time import Ns


@dataclass
class Member:
    """An instance of the cluster, with its place in it and what a router counts of it."""

    name: str
    group: str
    instance: Instance
    load: Load = field(default_factory=Load)


@dataclass(slots=True)
class _Resident:
    """Where a live request is, and what of it is in its instance's `Load`."""

    spec: RequestSpec
    member: int
    emitted: int = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request went and why; ``refused`` when that instance did not take it."""

    choice: Choice
    refused: Ended | None


class Cluster:
    """Sans-IO: routes requests to instances and keeps what routers may know. Instances are planned by the driver."""

    def __init__(self, members: Sequence[Member], router: Router, *, look_every_ns: Ns = 0) -> None:
        if not members:
            raise CallerError("a cluster needs an instance")
        self.members = tuple(members)
        self._router = router
        self._loads = tuple(member.load for member in members)
        self._observer = Observer(self._loads, look_every_ns)
        self._candidates = tuple(range(len(members)))
        self._live: dict[int, _Resident] = {}

    def submit(self, spec: RequestSpec, now_ns: Ns) -> Placement:
        """Route a request and submit it.

        Raises:
            CallerError: a live request has that id, in whatever instance.
        """
        if spec.id in self._live:
            raise CallerError(f"request {spec.id} is live already")
        choice = self._router.pick(spec, self._candidates, self._observer.look(now_ns))
        refused = self.members[choice.instance].instance.submit(spec, now_ns)
        if refused is None:
            self._router.sent(spec, choice.instance)
            self._live[spec.id] = _Resident(spec, choice.instance)
            load = self._loads[choice.instance]
            load.open += 1
            load.prefill_tokens += spec.prompt_tokens
            load.kv_tokens += spec.prompt_tokens
        return Placement(choice, refused)

    def completed(self, member: int, completed: Completed) -> None:
        """A step of a member was completed: count what it emitted and ended."""
        load = self._loads[member]
        for _number, request in completed.emitted:
            resident = self._live[request]
            if not resident.emitted:
                load.prefill_tokens -= resident.spec.prompt_tokens
            resident.emitted += 1
            load.kv_tokens += 1
        for ended in completed.ended:
            self._leave(ended.request)

    def abort(self, request: int, *, outcome: Outcome = Outcome.CANCELLED, reason: str = "cancelled") -> Ended | None:
        """End a request wherever it is; None when it is over already or never came."""
        resident = self._live.get(request)
        if resident is None:
            return None
        ended = self.members[resident.member].instance.abort(request, outcome=outcome, reason=reason)
        self._leave(request)
        return ended

    def started(self, request: int) -> bool:
        """Whether a request was ever admitted where it is; true when it is not live (any more)."""
        resident = self._live.get(request)
        return resident is None or self.members[resident.member].instance.started(request)

    def close_arrivals(self) -> None:
        """No request will arrive any more."""
        for member in self.members:
            member.instance.close_arrivals()

    def member_of(self, request: int) -> int | None:
        """Index of the member that a live request is in."""
        resident = self._live.get(request)
        return None if resident is None else resident.member

    def open_requests(self) -> list[int]:
        """Ids of live requests in order of submission."""
        return list(self._live)

    def check(self) -> None:
        """Each live request is in exactly one instance, loads add up, and each instance keeps its own laws.

        Raises:
            LawError: with the terms that do not agree.
        """
        for number, member in enumerate(self.members):
            member.instance.check()
            here = {request for request, resident in self._live.items() if resident.member == number}
            if here != set(member.instance.open_requests()):
                raise LawError(f"{member.name}: holds {member.instance.open_requests()}, routed there are {here}")
            residents = [self._live[request] for request in here]
            waiting = sum(r.spec.prompt_tokens for r in residents if not r.emitted)
            held = sum(r.spec.prompt_tokens + r.emitted for r in residents)
            load = member.load
            if (load.open, load.prefill_tokens, load.kv_tokens) != (len(here), waiting, held):
                raise LawError(
                    f"{member.name}: counts {load.open} requests, {load.prefill_tokens} prompt and {load.kv_tokens} KV "
                    f"tokens, has {len(here)}, {waiting} and {held}"
                )

    def _leave(self, request: int) -> None:
        resident = self._live.pop(request)
        load = self._loads[resident.member]
        load.open -= 1
        load.kv_tokens -= resident.spec.prompt_tokens + resident.emitted
        if not resident.emitted:
            load.prefill_tokens -= resident.spec.prompt_tokens
