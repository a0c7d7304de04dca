"""A request's critical path as data: what each kind of interval exposes and hides, and what removing it would save."""

from collections.abc import Iterable

from scheduler_core.evidence.path.critical_path import CriticalPath, critical_path
from scheduler_core.spec.base import Spec
from scheduler_core.types.records import Record
from scheduler_core.types.time import NS_PER_MS, Ns


class PathPart(Spec):
    """All intervals of one kind: time on the path, time hidden under others, and by how much the request would be
    sooner if they took no time (`CriticalPath.would_shorten_ns`).
    """

    kind: str
    exposed_ms: float
    hidden_ms: float
    would_shorten_ms: float


class PathStretch(Spec):
    """A stretch of the path, in ms of the run, and the kinds that ran underneath it."""

    kind: str
    start_ms: float
    end_ms: float
    hidden: list[str]


class PathReport(Spec):
    """The path of one request, from arrival to last token; its stretches add up to ``elapsed_ms``.

    ``parts`` has the longest on the path first.
    """

    request: int
    elapsed_ms: float
    parts: list[PathPart]
    stretches: list[PathStretch]


def path_report(records: Iterable[Record], request: int) -> PathReport:
    """The path of ``request`` in the records of a run; `InputError` when it has no token there."""
    path = critical_path(records, request)
    kinds = {stretch.kind for stretch in path.stretches} | {span.kind for span in path.spans}
    parts = sorted((_part(path, kind) for kind in kinds), key=lambda part: (-part.exposed_ms, part.kind))
    return PathReport(
        request=request,
        elapsed_ms=path.elapsed_ns / NS_PER_MS,
        parts=[part for part in parts if part.exposed_ms or part.hidden_ms],
        stretches=[
            PathStretch(
                kind=stretch.kind,
                start_ms=stretch.start_ns / NS_PER_MS,
                end_ms=stretch.end_ns / NS_PER_MS,
                hidden=list(stretch.hidden),
            )
            for stretch in path.stretches
        ],
    )


def _part(path: CriticalPath, kind: str) -> PathPart:
    exposed = path.exposed_ns(kind)
    return PathPart(
        kind=kind,
        exposed_ms=exposed / NS_PER_MS,
        hidden_ms=(_covered_ns(path, kind) - exposed) / NS_PER_MS,
        would_shorten_ms=path.would_shorten_ns(kind) / NS_PER_MS,
    )


def _covered_ns(path: CriticalPath, kind: str) -> Ns:
    """Time of the path during which an interval of ``kind`` ran, exposed or hidden."""
    return sum(stretch.length_ns for stretch in path.stretches if kind == stretch.kind or kind in stretch.hidden)
