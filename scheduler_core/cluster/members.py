"""Who is in a cluster: its instances, where requests are in them, and what it can do beside routing."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from scheduler_core.cluster.borrowing import Borrowing
from scheduler_core.cluster.fetching import Fetches
from scheduler_core.cluster.handoff import Handoffs
from scheduler_core.cluster.isolation import Isolation
from scheduler_core.cluster.links import Links
from scheduler_core.cluster.load import Load
from scheduler_core.cluster.migration import Migrations
from scheduler_core.cluster.refusal import Refusal
from scheduler_core.cluster.relief import Relief
from scheduler_core.cluster.router import Choice
from scheduler_core.request.spec import RequestSpec
from scheduler_core.sched.instance import Instance
from scheduler_core.sched.plan import Ended
from scheduler_core.types.errors import LawError
from scheduler_core.types.records import Record


@dataclass
class Member:
    """An instance of the cluster, with its place in it and what a router counts of it."""

    name: str
    group: str
    instance: Instance
    load: Load = field(default_factory=Load)


class Resident:
    """Where a live request is, and what of it is in its instance's `Load`."""

    __slots__ = ("emitted", "member", "spec")

    def __init__(self, spec: RequestSpec, member: int) -> None:
        self.spec, self.member, self.emitted = spec, member, 0


class Placement(NamedTuple):
    """Where a request went and why; ``refused`` when that instance did not take it.

    ``displaced`` is who had to leave a full queue for it.
    """

    choice: Choice
    refused: Ended | None
    displaced: Ended | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What a cluster can do beside routing; whatever is absent, it does not do.

    With ``handoffs`` requests leave the entries once their prompt is computed, with ``migrations`` while they decode,
    with ``relief`` while they wait, all over ``links``; with ``fetches`` beginnings of their prompts come to them. With
    ``borrowing`` pools lend each other instances; with ``isolation`` tiers have their own. ``refusal`` may refuse a
    request before it is let in. With ``takes_over`` others go on with the requests of an instance that died, else those
    fail.
    """

    links: Links | None = None
    handoffs: Handoffs | None = None
    borrowing: Borrowing | None = None
    migrations: Migrations | None = None
    refusal: Refusal | None = None
    isolation: Isolation | None = None
    relief: Relief | None = None
    fetches: Fetches | None = None
    takes_over: bool = True


def check_load(member: Member, residents: Sequence[Resident]) -> None:
    """`LawError` where a member counts other requests or tokens than its ``residents`` have."""
    waiting = sum(r.spec.prompt_tokens for r in residents if not r.emitted)
    held = sum(r.spec.prompt_tokens + r.emitted for r in residents)
    urgent = sum(r.spec.priority < 0 for r in residents)
    load = member.load
    if (load.open, load.prefill_tokens, load.kv_tokens, load.urgent) != (len(residents), waiting, held, urgent):
        raise LawError(
            f"{member.name}: counts {load.open} requests, {load.prefill_tokens} prompt and {load.kv_tokens} KV tokens, "
            f"{load.urgent} urgent, has {len(residents)}, {waiting}, {held} and {urgent}"
        )


class Telling(Protocol):
    """A part that keeps records of what it did."""

    records: list[Record]


def taken(*parts: Telling | None) -> list[Record]:
    """What those parts that are there have told since they were asked last."""
    told: list[Record] = []
    for part in parts:
        if part is not None:
            told += part.records
            part.records = []
    return told
