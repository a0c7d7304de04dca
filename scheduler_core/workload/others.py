"""A plan in which one tenant's or tier's requests stay as they are and the others' are left out or repeated."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from scheduler_core.spec.isolation import Others
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.errors import InputError, Problem
from scheduler_core.types.time import Ns

_SEEDS = 1 << 62  # seeds of requests are below; that of a repetition differs in its place above


def with_others(requests: Sequence[PlannedRequest], others: Others) -> tuple[PlannedRequest, ...]:
    """``requests`` with everybody else's ``others.times`` over, numbered anew in order of arrival.

    Repetition k of n comes k/n of the plan's span later, and what would come after its end at the beginning, so that
    bursts are not stacked. A request that follows another follows the same repetition of it.

    Raises:
        InputError: nobody is of that tenant or tier, or requests of it follow those of others (users of a closed loop
            that change their tier), so that they could not stay as they are.
    """
    own = [getattr(request, others.kind) == others.who for request in requests]
    if not any(own):
        known = ", ".join(sorted({getattr(request, others.kind) for request in requests}))
        raise InputError([Problem(f"others.{others.kind}", f"no request is of {others.who}; there are {known}")])
    span = max(request.arrival_ns for request in requests) + 1
    placed: list[tuple[Ns, int, PlannedRequest]] = []
    starts: dict[tuple[int, int], Ns] = {}
    for request, mine in zip(requests, own, strict=True):
        _check_follows(request, own, others)
        for copy in range(1 if mine else others.times):
            shift = span * copy // max(others.times, 1)
            due = (request.arrival_ns + shift) % span
            if request.after:
                due = max(starts[before, copy] for before in request.after) + request.arrival_ns
            starts[request.index, copy] = due
            placed.append((due, copy, request))
    placed.sort(key=lambda item: (item[0], item[1], item[2].index))
    return tuple(_numbered(placed))


def _check_follows(request: PlannedRequest, own: Sequence[bool], others: Others) -> None:
    if any(own[before] != own[request.index] for before in request.after):
        message = (
            f"request {request.index} and one that it follows are of different {others.kind}s, so neither can be "
            "played without the other; give arrivals a rate instead of users"
        )
        raise InputError([Problem(f"others.{others.kind}", message)])


def _numbered(placed: Sequence[tuple[Ns, int, PlannedRequest]]) -> Iterator[PlannedRequest]:
    index = {(request.index, copy): number for number, (_, copy, request) in enumerate(placed)}
    sessions = 1 + max((request.session for *_, request in placed if request.session is not None), default=0)
    for number, (due, copy, request) in enumerate(placed):
        yield replace(
            request,
            index=number,
            arrival_ns=request.arrival_ns if request.after else due,
            seed=(request.seed + copy * (_SEEDS // 16)) % _SEEDS if copy else request.seed,
            session=None if request.session is None else request.session + copy * sessions,
            after=tuple(index[before, copy] for before in request.after),
        )
