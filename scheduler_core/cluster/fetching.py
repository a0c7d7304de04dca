"""Beginnings of prompts that one instance has computed, fetched by another before it computes the rest (MK-01, MK-04).

::

    arrives ── another knows much more of it ── held, the KV on the link ── cached there ── waits, and finds it
                                                └─ its source died ─────── waits, and computes it

What was fetched stays in the prefix cache of the borrower: beginnings that many ask for spread over the instances.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler_core.cluster.effects import Effects
from scheduler_core.cluster.links import Links, Moved
from scheduler_core.cluster.prefixes import PrefixIndex
from scheduler_core.cluster.router import Lending, Loan
from scheduler_core.request.spec import RequestSpec
from scheduler_core.sched.instance import Instance
from scheduler_core.sched.moving import Leaving, Reserved
from scheduler_core.types.cluster_records import PrefixMoved
from scheduler_core.types.records import Record
from scheduler_core.types.time import Ns


@dataclass(frozen=True, slots=True, eq=False)
class Fetch:
    """A beginning on its way. ``guest`` has its place at ``destination`` until it is cached there."""

    request: int
    guest: int
    source: int
    destination: int
    tokens: int
    bytes: int


@dataclass
class Fetches:
    """All that are under way. What is sent is what the source has cached when it is asked; a copy of it goes, so that
    what becomes of it there meanwhile does not matter."""

    instances: Sequence[Instance]
    links: Links
    index: PrefixIndex
    lending: Lending
    kv_bytes_per_token: int
    records: list[Record] = field(default_factory=list)
    _open: dict[int, Fetch] = field(default_factory=dict)
    _silent: set[int] = field(default_factory=set)

    def loan(self, spec: RequestSpec, member: int) -> Loan | None:
        """What of a prompt that goes to ``member`` is worth fetching; to be asked before the router is told of it."""
        return self.lending.loan(self.index.matches(spec), member)

    def start(self, spec: RequestSpec, member: int, loan: Loan, now_ns: Ns) -> None:
        """A request waits at ``member``: fetch what is really there of ``loan``, if there is room for it."""
        instance = self.instances[member]
        tokens = min(loan.tokens, self.instances[loan.source].cached(spec))
        if tokens <= instance.cached(spec):
            return
        guest = spec._replace(id=-1 - spec.id)
        reserved = instance.reserve(Leaving(guest, spec.prompt_tokens, tokens, 0), now_ns)
        if not isinstance(reserved, Reserved):
            return
        size = max(0, tokens - reserved.hit_tokens) * self.kv_bytes_per_token
        fetch = self._open[spec.id] = Fetch(spec.id, guest.id, loan.source, member, tokens, size)
        instance.hold(spec.id)
        if not self._unheard(fetch):
            self.links.between(loan.source, member).start(fetch, size, now_ns)
        self._say(fetch, "leaves", now_ns)

    def settle(self, landed: Sequence[Moved], now_ns: Ns, effects: Effects) -> None:
        """What has ``landed`` is cached, and who waited for it waits in line."""
        for moved in landed:
            fetch = moved.flow
            if isinstance(fetch, Fetch) and self._open.pop(fetch.request, None) is not None:
                instance = self.instances[fetch.destination]
                instance.keep(fetch.guest, fetch.tokens)
                instance.release(fetch.request)
                effects.touched.add(fetch.destination)
                self._say(fetch, "arrives", now_ns)

    def forget(self, request: int, now_ns: Ns) -> None:
        """A request is over, or lost with its instance."""
        fetch = self._open.pop(request, None)
        if fetch is not None:
            self._stop(fetch, now_ns)
            self.instances[fetch.destination].depart(fetch.guest)

    def silence(self, member: int, now_ns: Ns) -> None:
        """``member`` died: nothing it sends or was sent lands any more, which nobody knows yet."""
        self._silent.add(member)
        for fetch in self._open.values():
            if self._unheard(fetch):
                self._stop(fetch, now_ns)

    def lost(self, member: int, now_ns: Ns, effects: Effects) -> None:
        """It is known that ``member`` died: who waited for what it sends computes it."""
        for fetch in [fetch for fetch in self._open.values() if fetch.source == member]:
            self.forget(fetch.request, now_ns)
            self.instances[fetch.destination].release(fetch.request)
            effects.touched.add(fetch.destination)
            self._say(fetch, "lost", now_ns)

    def back(self, member: int) -> None:
        """``member`` can be heard again."""
        self._silent.discard(member)

    def reserved_at(self, member: int) -> set[int]:
        """Guests at ``member``."""
        return {fetch.guest for fetch in self._open.values() if fetch.destination == member}

    def _unheard(self, fetch: Fetch) -> bool:
        return fetch.source in self._silent or fetch.destination in self._silent

    def _stop(self, fetch: Fetch, now_ns: Ns) -> None:
        self.links.between(fetch.source, fetch.destination).stop(fetch, now_ns)

    def _say(self, fetch: Fetch, action: str, now_ns: Ns) -> None:
        ways = fetch.request, fetch.source, fetch.destination
        self.records.append(PrefixMoved(now_ns, *ways, action, fetch.tokens, fetch.bytes))
