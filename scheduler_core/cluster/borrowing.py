"""Pools that lend each other instances, and both places of a request chosen as it arrives (SW-01 to SW-04).

::

    prompt:  the prefill pool ── all queues full ── mixed ones ── full too ── borrow from the decode pool
    answer:  the decode pool ─── no room ────────── mixed ones ── no room ─── borrow from the prefill pool
             nobody left to borrow: both on the least loaded of all

A borrowed instance is mixed: it goes on with what it has and does the other pool's work beside it. It goes home as soon
as it is idle. Where both places are the same instance, nothing is handed over.
"""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from scheduler_core.cluster.load import Load
from scheduler_core.cluster.pools import Pool, Pools
from scheduler_core.cluster.router import Choice, Router
from scheduler_core.request.spec import RequestSpec
from scheduler_core.types.time import Ns


class Pair(NamedTuple):
    """Where a prompt is computed, and the instance where its answer is to be decoded."""

    prompt: Choice
    decoder: int


class _Offer(NamedTuple):
    """Instances that a request may go to; ``lent`` is the one of them that would be lent for it."""

    members: tuple[int, ...]
    lent: int | None = None


_NOBODY = _Offer(())


class Borrowing:
    """Chooses both places of a request, and lends instances where a pool has none to offer.

    A prefill instance qualifies while nothing waits there, or while its prompt tokens that wait stay within
    ``queue_tokens`` with the new prompt (SW-01). A decode instance qualifies while what was committed there, and the
    most that the request can come to, stay below the KV tokens of its pool, ``capacity`` (SW-02).
    """

    def __init__(self, pools: Pools, router: Router, capacity: Sequence[int], queue_tokens: int) -> None:
        self._pools, self._router, self._capacity, self._queue_tokens = pools, router, capacity, queue_tokens
        self._committed = [0] * len(capacity)
        self._commitments: dict[int, tuple[int, int]] = {}

    def place(self, spec: RequestSpec, up: Collection[int], loads: Sequence[Load], now_ns: Ns) -> Pair:
        """Both places of a request among the instances that are ``up`` (never empty); they are marked and committed."""
        prompts, lent = self._for_prompt(spec, up, loads)
        decoders, lent_too = self._for_answer(spec, up, lent)
        if prompts and decoders:
            if lent is not None:
                self._lend(lent, f"no prefill queue has room for {spec.prompt_tokens} tokens", now_ns)
            if lent_too is not None:
                self._lend(lent_too, f"no decode instance has room for {_most(spec)} tokens", now_ns)
            pair = Pair(self._router.pick(spec, prompts, loads), min(decoders, key=self._fullness))
        else:
            least = min(up, key=lambda member: (loads[member].open, member))
            if self._pools[least] is not Pool.MIXED:
                self._lend(least, "nobody is left to borrow", now_ns)
            pair = Pair(Choice(least, loads[least].open), least)
        self.commit(spec, pair.decoder)
        return pair

    def _for_prompt(self, spec: RequestSpec, up: Collection[int], loads: Sequence[Load]) -> _Offer:
        """Who may compute the prompt, and who of them would have to be lent for it."""

        def takes(member: int) -> bool:
            pending = loads[member].prefill_tokens
            return not pending or pending + spec.prompt_tokens <= self._queue_tokens

        found = self._qualified(Pool.PREFILL, up, takes, None)
        if found:
            return _Offer(found)
        lendable = self._lendable(Pool.DECODE, up, None)
        if not lendable:
            return _NOBODY
        least = min(lendable, key=lambda member: (loads[member].prefill_tokens, loads[member].open, member))
        return _Offer((least,), least)

    def _for_answer(self, spec: RequestSpec, up: Collection[int], lent: int | None) -> _Offer:
        """Who may decode, and who of them would have to be lent for it; ``lent`` is mixed by then."""
        most = _most(spec)

        def takes(member: int) -> bool:
            return self._committed[member] + most < self._capacity[member]

        found = self._qualified(Pool.DECODE, up, takes, lent)
        if found:
            return _Offer(found)
        lendable = self._lendable(Pool.PREFILL, up, lent)
        if not lendable:
            return _NOBODY
        least = min(lendable, key=self._fullness)
        return _Offer((least,), least)

    def commit(self, spec: RequestSpec, member: int) -> None:
        """A request is to be decoded at ``member``, wherever that was before."""
        self.release(spec.id)
        self._commitments[spec.id] = member, _most(spec)
        self._committed[member] += _most(spec)

    def decoder(self, request: int) -> int | None:
        """Where a request is to be decoded; None where nobody said so."""
        commitment = self._commitments.get(request)
        return None if commitment is None else commitment[0]

    def release(self, request: int) -> None:
        """A request is over."""
        member, tokens = self._commitments.pop(request, (0, 0))
        self._committed[member] -= tokens

    def settle(self, idle: Callable[[int], bool], now_ns: Ns) -> bool:
        """Let borrowed instances go home that are ``idle`` and promised to nobody; whether any did."""
        done = [member for member in self._pools.of(Pool.MIXED) if not self._committed[member] and idle(member)]
        for member in done:
            self._pools.change(member, self._pools.homes[member], "idle", now_ns)
        return bool(done)

    def _qualified(
        self, pool: Pool, up: Collection[int], takes: Callable[[int], bool], lent: int | None
    ) -> tuple[int, ...]:
        """Instances of the pool that qualify, else mixed ones that do; ``lent`` counts as mixed."""
        found = tuple(member for member in self._lendable(pool, up, lent) if takes(member))
        if found:
            return found
        mixed = sorted((*self._pools.of(Pool.MIXED), *(() if lent is None else (lent,))))
        return tuple(member for member in mixed if member in up and takes(member))

    def _lendable(self, pool: Pool, up: Collection[int], lent: int | None) -> tuple[int, ...]:
        return tuple(member for member in self._pools.of(pool) if member in up and member != lent)

    def _lend(self, member: int, reason: str, now_ns: Ns) -> None:
        self._pools.change(member, Pool.MIXED, reason, now_ns)

    def _fullness(self, member: int) -> tuple[float, int]:
        return self._committed[member] / self._capacity[member], member


def _most(spec: RequestSpec) -> int:
    """The KV tokens that a request can come to."""
    return spec.prompt_tokens + spec.output_limit
