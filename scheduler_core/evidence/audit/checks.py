"""What the audit enforces, and what it holds of requests and instances while it replays a run."""

from dataclasses import dataclass, field

from scheduler_core.types.records import Paused, RunStarted
from scheduler_core.types.time import Ns

# Check name -> what is enforced; names cite the rule where the requirements number one.
CHECKS: dict[str, str] = {
    "offered = outcomes": "every offered request arrived and ended exactly once",
    "blocks conserved": "used + cached + free KV blocks = the pool after every step, and the host pool holds what was "
    "swapped out",
    "reset when unused": "the prefix cache is forgotten only while nobody runs or is swapped out, and all of it",
    "paused once": "only a running request pauses, and it goes on with what it had computed",
    "samples share": "a sample shares no more of its prompt than another one of it had computed, and a block is copied "
    "for each that parts from the others inside it",
    "budget": "tokens granted in a step are within its budget",
    "R25 ordering": "records in order of time; no lane outside its step, no grant before arrival",
    "no negative duration": "no duration is negative; one that is, is a fault of the product",
    "resident once": "each resident request is granted or stalled exactly once per step",
    "tokens contiguous": "each grant starts where the one before it ended, or at its cache hit",
    "sampled at the end": "a grant yields a token exactly when it reaches the last known token, or its request fails",
    "emitted = declared": "tokens emitted = tokens declared at the end, within the limit; a finished one has some",
    "migration in order": "a migration starts, goes through its stages, stops its request and lands, or is dropped",
    "power in order": "an instance starts, is on, drains and is off in this order, a cold start has the stages "
    "of the target, nobody is left where it goes off, and as many stay on as the policy says",
    "pools in order": "an instance changes its pool as the policy lets it, empty where it must be, and somebody "
    "computes prompts and somebody decodes at any time",
    "roles kept": "prompts are admitted only where they are computed, and KV lands only where it is decoded, at "
    "instances that are on",
    "tiers apart": "a tier's requests run on its own instances, and beyond them only where that is declared and told, "
    "while each of its own has as many requests as declared",
    "leases end": "blocks held for a transfer that was given up are let go once, after the lease at the latest",
    "R8 recompute once": "each prompt token is found or computed once; recompute only after a preemption",
    "R4 additivity": "segments add up to E2E, TTFT + gaps = E2E, unattributed time within its bound",
    "handoff adds up": "waits for room, network and bytes are the time that a request is held or on its way, and no "
    "bytes move faster than the link",
    "devices add up": "work, waits and exposed communication of a parallel instance's devices are their time, and "
    "experts keep or drop what chose them",
    "drafts add up": "no more of a draft is accepted than was drafted, for a request that decodes and emits a token, "
    "and no draft goes beyond the declared limit",
    "R26 typed absence": "a figure has a value or a reason, never both, never neither",
}


@dataclass(slots=True)
class AuditedRequest:
    """One open request. While it decodes along, its numbers are those of step ``along_since`` of its instance."""

    arrived_ns: Ns
    prompt: int
    limit: int
    group: int | None = None
    resident: bool = False
    epoch: int = -1
    next_start: int | None = None
    emitted: int = 0
    first_ns: Ns | None = None
    last_ns: Ns | None = None
    gaps_ns: Ns = 0
    prefilled: int = 0
    first_hit: int | None = None
    preempted: int = 0
    token_lost: bool = False
    instance: int = 0
    recomputes: bool = False
    landed: tuple[int, int] | None = None
    paused: Paused | None = None
    held: bool = False
    migrating: str = ""
    along_since: int | None = None
    away_since: Ns | None = None
    away_ns: Ns = 0


@dataclass(slots=True)
class AuditedInstance:
    """What must hold of the steps of one instance.

    ``along`` decode along by what the records of steps say, ``gone`` are those of them that are not resident by what
    other records say. ``steps`` counts those of `Steps`.
    """

    resident: set[int] = field(default_factory=set)
    ended_at: dict[int, Ns] = field(default_factory=dict)
    last_step: int | None = None
    last_available: Ns = 0
    swapped_blocks: int = 0
    empty: bool = False  # the cache was reset and no step has been planned since
    along: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    steps: int = 0

    def leave(self, number: int) -> None:
        """A request is not resident any more."""
        self.resident.discard(number)
        if number in self.along:
            self.gone.add(number)

    def settle(self, request: AuditedRequest) -> None:
        """Bring the numbers of a request that decodes along up to the newest step."""
        if request.along_since is None or request.last_ns is None or request.next_start is None:
            return
        steps, request.along_since = self.steps - request.along_since, None
        if steps:
            request.emitted += steps
            request.next_start += steps
            request.gaps_ns += self.last_available - request.last_ns
            request.last_ns = self.last_available

    def apart(self, planned_ns: Ns) -> set[int]:
        """Residents who do not decode along; ended ones are forgotten that were not planned any more at that time."""
        for request, ended_ns in tuple(self.ended_at.items()):
            if planned_ns >= ended_ns:
                del self.ended_at[request]
        return self.resident - self.along if self.along else self.resident


def pool_of(started: RunStarted, instance: int) -> int:
    """KV blocks of an instance."""
    known = instance < len(started.instances)
    return int(started.instances[instance]["kv_blocks"]) if known else started.kv_blocks
