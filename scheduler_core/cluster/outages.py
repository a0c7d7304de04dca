"""Instances that die or are drained at set times, and when the rest of the cluster knows.

::

    serving ── died ──────────── noticed ──────────────── back
               its step is lost,  its requests are taken   empty and cold
               nobody knows yet   over by others, or fail
    serving ── draining ───────────────────────────────── back
               gets nothing new, ends what it has (or is emptied by migration)
"""

from collections.abc import Sequence
from typing import NamedTuple

from scheduler_core.types.cluster_records import OutageStage
from scheduler_core.types.records import Record
from scheduler_core.types.time import NEVER, Ns

DIED, NOTICED, DRAINING, BACK = "died", "noticed", "draining", "back"


class Outage(NamedTuple):
    """``member`` dies, or with ``drains`` is drained, at ``at_ns``; at ``back_ns`` it serves again, None: never."""

    member: int
    at_ns: Ns
    drains: bool = False
    back_ns: Ns | None = None


class Outages:
    """Who is ``dead``, of whom it is not ``noticed`` yet, and who is ``out``: known to take nothing new."""

    def __init__(self, outages: Sequence[Outage], notice_ns: Ns) -> None:
        due: list[tuple[Ns, int, int, str]] = []
        for outage in outages:
            due.append((outage.at_ns, 1, outage.member, DRAINING if outage.drains else DIED))
            noticed = outage.at_ns + notice_ns
            if not outage.drains and (outage.back_ns is None or noticed < outage.back_ns):
                due.append((noticed, 2, outage.member, NOTICED))
            if outage.back_ns is not None:
                due.append((outage.back_ns, 0, outage.member, BACK))
        self._due = sorted(due, reverse=True)
        self.dead: set[int] = set()
        self.out: set[int] = set()
        self.records: list[Record] = []

    def next_ns(self) -> Ns:
        """When the next thing happens; `NEVER` when nothing will."""
        return self._due[-1][0] if self._due else NEVER

    def take(self, now_ns: Ns) -> list[tuple[int, str]]:
        """What happened by ``now_ns``, in order: (member, what). Who is back before it was missed is missed first."""
        happened: list[tuple[int, str]] = []
        while self._due and self._due[-1][0] <= now_ns:
            at_ns, _order, member, what = self._due.pop()
            if what == BACK and member in self.dead and member not in self.out:
                happened.append(self._happen(at_ns, member, NOTICED))
            happened.append(self._happen(at_ns, member, what))
        return happened

    def _happen(self, at_ns: Ns, member: int, what: str) -> tuple[int, str]:
        if what == DIED:
            self.dead.add(member)
        elif what == BACK:
            self.dead.discard(member)
            self.out.discard(member)
        else:
            self.out.add(member)
        self.records.append(OutageStage(at_ns, member, what))
        return member, what
