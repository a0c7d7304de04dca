"""The part of the audit that follows requests from instance to instance."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, get_args

from scheduler_core.evidence.audit.checks import AuditedInstance, AuditedRequest
from scheduler_core.types.cluster_records import (
    Emitted,
    Handoff,
    Held,
    Landed,
    Lost,
    Migration,
    Parked,
    PrefixMoved,
    Reassigned,
    Revoked,
    Routed,
    Transferred,
)
from scheduler_core.types.time import Ns

Move = (
    Routed
    | Held
    | Parked
    | Emitted
    | Handoff
    | Landed
    | Migration
    | Revoked
    | Lost
    | Transferred
    | Reassigned
    | PrefixMoved
)
MOVES = get_args(Move)

# Stages of a migration -> what may come next.
_AFTER = {
    "": ("started",),
    "started": ("stage", "stopped", "dropped"),
    "stage": ("stage", "stopped", "dropped"),
    "stopped": ("landed", "dropped"),
}


class Check(Protocol):
    """Counts a check of ``rule``; where it does not hold, ``message`` is filled with ``numbers``."""

    def __call__(self, rule: str, holds: bool, where: str, message: str, *numbers: object) -> None: ...  # noqa: FBT001


@dataclass
class MovesAudit:
    """Works on the audit's own requests and instances; ``known`` is how many instances the run has, if it said so.

    ``token`` accounts for a token that a request got at a time.
    """

    open: dict[int, AuditedRequest]
    instances: dict[int, AuditedInstance]
    check: Check
    token: Callable[[tuple[str, int], AuditedRequest, Ns], None]
    known: int | None = None

    def take(self, record: Move) -> None:
        """Replay one record."""
        if isinstance(record, Routed):
            self._routed(record)
        elif isinstance(record, Held):
            self._held(record)
        elif isinstance(record, Parked):
            self._parked(record)
        elif isinstance(record, Emitted):
            self._emitted(record)
        elif isinstance(record, Handoff):
            self._handoff(record)
        elif isinstance(record, Landed):
            self._landed(record)
        elif isinstance(record, Migration):
            self._migration(record)
        elif isinstance(record, Lost):
            self._lost(record)
        elif isinstance(record, Transferred):
            self._transferred(record)
        elif isinstance(record, Reassigned):
            self._reassigned(record)
        elif isinstance(record, PrefixMoved):
            self._prefix_moved(record)
        else:
            self._revoked(record)

    def _routed(self, record: Routed) -> None:
        request = self.open.get(record.request)
        where = f"routed request {record.request}"
        self.check("offered = outcomes", request is not None, where, "routed before it arrived or after it ended")
        known = self.known is None or 0 <= record.instance < self.known
        self.check("resident once", known, where, "went to instance {}, which the run does not have", record.instance)
        if request is not None:
            self.check("resident once", not request.resident, where, "routed while resident in instance {}",
                        request.instance)  # fmt: skip
            request.instance = record.instance

    def _held(self, record: Held) -> None:
        request, where = self.open.get(record.request), f"held request {record.request}"
        fits = request is not None and not request.resident and request.held == record.over
        self.check("resident once", fits, where, "runs, or was {}held before", "not " if record.over else "")
        if request is not None:
            request.held = not record.over
            self._away(request, record.at_ns, back=record.over)

    def _parked(self, record: Parked) -> None:
        """A request goes to another instance: it must have been resident in this one."""
        request, where = self.open.get(record.request), f"parked request {record.request}"
        there = request is not None and request.resident and request.instance == record.instance
        self.check("resident once", there, where, "was not resident in instance {}", record.instance)
        if request is None:
            return
        request.resident = False
        self._away(request, record.at_ns)
        self.instances[request.instance].leave(record.request)
        if not record.answered:  # its prompt is complete, and the token after it another's to compute or to emit
            self.check("sampled at the end", request.token_lost and not request.emitted, where, "{} tokens are out",
                        request.emitted)  # fmt: skip
            request.token_lost = False
        request.preempted += 1

    def _emitted(self, record: Emitted) -> None:
        request, where = self.open.get(record.request), f"emitted for request {record.request}"
        held = request is not None and not request.resident and not request.emitted
        self.check("sampled at the end", held, where, "had no first token that was withheld")
        if request is not None:
            self.token((where, record.request), request, record.at_ns)

    def _handoff(self, record: Handoff) -> None:
        request = self.open.get(record.request)
        where = f"handoff of request {record.request}"
        self.check("resident once", request is not None and not request.resident, where, "decided while it runs")
        if request is not None and record.action == "recompute":
            request.instance, request.next_start = record.destination, None
            request.recomputes = True
            self._away(request, record.at_ns, back=True)

    def _reassigned(self, record: Reassigned) -> None:
        """Only who waits and holds nothing is taken to another queue, and is in none in between."""
        request, where = self.open.get(record.request), f"reassigned request {record.request}"
        leaves = record.action == "leaves"
        fits = request is not None and not request.resident and (request.away_since is None) == leaves
        self.check("resident once", fits, where, "{} while it runs, or is on its way", record.action)
        if request is not None:
            there = request.instance == record.source
            self.check("resident once", there, where, "was not in instance {}", record.source)
            self._away(request, record.at_ns, back=not leaves)
            if record.action == "arrives":
                request.instance = record.destination

    def _prefix_moved(self, record: PrefixMoved) -> None:
        """Who waits for a beginning waits in no line, where that is to come."""
        request, where = self.open.get(record.request), f"fetch for request {record.request}"
        leaves = record.action == "leaves"
        fits = request is not None and not request.resident and (request.away_since is None) == leaves
        self.check("resident once", fits, where, "{} while it runs, or waits for a fetch", record.action)
        if request is not None:
            here = request.instance == record.destination
            self.check("resident once", here, where, "is not in instance {}", record.destination)
            self._away(request, record.at_ns, back=not leaves)

    def _transferred(self, record: Transferred) -> None:
        """No link is faster than it is alone."""
        spare = record.at_ns - record.start_ns - (record.alone_ns or 0)
        self.check("handoff adds up", spare >= 0, f"transfer of request {record.request}",
                    "{} bytes landed {} ns sooner than the link alone allows", record.bytes, -spare)  # fmt: skip

    @staticmethod
    def _away(request: AuditedRequest, at_ns: Ns, *, back: bool = False) -> None:
        """A request begins or ends to be held back or on its way, which is neither queue nor step."""
        if request.away_since is not None:
            request.away_ns += at_ns - request.away_since
        request.away_since = None if back else at_ns

    def _landed(self, record: Landed) -> None:
        request = self.open.get(record.request)
        where = f"landed request {record.request}"
        self.check("resident once", request is not None and not request.resident, where, "landed while it runs")
        if request is not None:
            whole = record.tokens == request.prompt + request.emitted - 1
            self.check("tokens contiguous", whole, where, "{} tokens of {} have KV", record.tokens,
                        request.prompt + request.emitted - 1)  # fmt: skip
            request.instance, request.recomputes = record.instance, False
            request.landed = (record.epoch, record.tokens)
            self._away(request, record.at_ns, back=True)

    def _migration(self, record: Migration) -> None:
        """A migration goes through its stages in order; until it stops its request the source may go on with it."""
        request, where = self.open.get(record.request), f"migration of request {record.request}"
        if request is None:
            self.check("migration in order", record.reason == "ended", where, "{} after its end", record.action)
            return
        due = record.action in _AFTER.get(request.migrating, ())
        self.check("migration in order", due, where, "{} after {}", record.action, request.migrating or "nothing")
        if record.action in ("stopped", "landed"):
            self.check("migration in order", not request.resident, where, "{} while it runs", record.action)
        request.migrating = "" if record.action in ("landed", "dropped") else record.action

    def _revoked(self, record: Revoked) -> None:
        request = self.open.get(record.request)
        held = request is not None and request.landed is not None and not request.resident
        self.check("resident once", held, f"revoked request {record.request}", "had no delivered KV")
        if request is not None:
            request.landed, request.recomputes = None, True

    def _lost(self, record: Lost) -> None:
        """The instance that a request is in died: the request holds nothing any more, and may go elsewhere."""
        request, where = self.open.get(record.request), f"lost request {record.request}"
        there = request is not None and request.instance == record.instance
        self.check("resident once", there, where, "was not in instance {}", record.instance)
        if request is None:
            return
        self.instances[request.instance].resident.discard(record.request)
        request.resident, request.held, request.landed, request.paused = False, False, None, None
        request.recomputes, request.next_start, request.migrating = True, None, ""
        self._away(request, record.at_ns, back=True)
        request.token_lost = False
        request.preempted += 1  # what it computes again, it computes again for that
