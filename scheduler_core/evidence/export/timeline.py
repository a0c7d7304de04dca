"""A run's timeline in the Trace Event format that Perfetto and chrome://tracing open.

Lanes of steps go on one track per resource, each request's critical path on a track of its own, KV blocks and queue
into counters. Times are microseconds, as the format demands. Records are read once, in their order, and a path is
written when its request ends: memory holds the requests under way, however long the run.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from scheduler_core.evidence.path.critical_path import PathSpans
from scheduler_core.evidence.records.expand import expand
from scheduler_core.files import whole
from scheduler_core.types.records import Arrived, Finished, Loaded, Preempted, Record, RunStarted, Step
from scheduler_core.types.time import NS_PER_US, Ns

_STEPS, _REQUESTS = 1, 2  # process ids of the two groups of tracks
MOST_REQUESTS = 200


def write_timeline(records: Iterable[Record], target: Path, *, most_requests: int = MOST_REQUESTS) -> Path:
    """Write the timeline of a run; the paths of the first ``most_requests`` requests are drawn, all steps are."""
    with whole(target) as partial, partial.open("w", encoding="utf-8") as stream:
        stream.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        for place, event in enumerate(events(records, most_requests)):
            stream.write((",\n" if place else "") + json.dumps(event, separators=(",", ":")))
        stream.write("\n]}\n")
    return target


def events(records: Iterable[Record], most_requests: int) -> Iterator[dict[str, Any]]:
    """Trace events of all records."""
    yield _name(_STEPS, "steps by resource")
    yield _name(_REQUESTS, "requests, critical path")
    resources: dict[str, int] = {}
    paths = _Paths(most_requests)
    for record in expand(records):
        if isinstance(record, RunStarted):
            yield _instant("run started", 0, {"run": record.run, "policy": record.policy})
        elif isinstance(record, Step):
            yield from _step(record, resources)
        elif isinstance(record, Preempted):
            yield _instant(f"preempted {record.request}: {record.reason}", record.at_ns, {"blocks": record.blocks})
        elif isinstance(record, Finished) and record.outcome != "finished":
            yield _instant(f"{record.outcome} {record.request}: {record.reason}", record.at_ns, {})
        yield from paths.take(record)
    for resource, track in resources.items():
        yield _thread(_STEPS, track, resource)
    yield from paths.rest()


class _Paths:
    """The critical paths of the first ``most`` requests, each given out and forgotten at the request's end."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._open: dict[int, PathSpans] = {}
        self._loads: list[Loaded] = []

    def take(self, record: Record) -> Iterator[dict[str, Any]]:
        """Take one record; events of the request that ends with it."""
        if isinstance(record, Arrived) and self._left:
            self._left -= 1
            spans = self._open[record.request] = PathSpans(record.request)
            for load in self._loads:
                spans.take(load)
            spans.take(record)
        elif isinstance(record, Loaded):
            self._loads.append(record)
            for spans in self._open.values():
                spans.take(record)
        elif isinstance(record, Step):
            present = {row[0] for row in record.grants} | {row[0] for row in record.stalled}
            for request in present & self._open.keys():
                self._open[request].take(record)
        elif isinstance(record, Finished) and record.request in self._open:
            yield from _request(self._open.pop(record.request))
        elif (path := self._open.get(getattr(record, "request", -1))) is not None:
            path.take(record)

    def rest(self) -> Iterator[dict[str, Any]]:
        """Events of the requests that had not ended."""
        for spans in self._open.values():
            yield from _request(spans)


def _step(step: Step, resources: dict[str, int]) -> Iterator[dict[str, Any]]:
    tokens = sum(grant[3] for grant in step.grants)
    about = {"step": step.id, "tokens": tokens, "requests": len(step.grants), "budget": step.budget}
    for kind, resource, start, end in step.lanes:
        track = resources.setdefault(resource, len(resources) + 1)
        yield _slice(kind, (_STEPS, track), start, end, about)
    at = step.planned_ns / NS_PER_US
    blocks = {"used": step.kv_used, "cached": step.kv_cached, "free": step.kv_free}
    yield {"name": "KV blocks", "ph": "C", "pid": _STEPS, "ts": at, "args": blocks}
    queue = {"waiting": step.waiting, "running": step.running}
    yield {"name": "requests", "ph": "C", "pid": _STEPS, "ts": at, "args": queue}


def _request(spans: PathSpans) -> Iterator[dict[str, Any]]:
    path = spans.path()
    if path is None:
        return  # it emitted nothing, so there is no path to draw
    request = spans.request
    yield _thread(_REQUESTS, request + 1, f"request {request}")
    for stretch in path.stretches:
        hidden = {"hidden": list(stretch.hidden)} if stretch.hidden else {}
        yield _slice(stretch.kind, (_REQUESTS, request + 1), stretch.start_ns, stretch.end_ns, hidden)


def _slice(name: str, track: tuple[int, int], start: Ns, end: Ns, about: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name, "ph": "X", "pid": track[0], "tid": track[1], "ts": start / NS_PER_US,
        "dur": (end - start) / NS_PER_US, "args": about,
    }  # fmt: skip


def _instant(name: str, at: Ns, about: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "i", "s": "g", "pid": _STEPS, "tid": 0, "ts": at / NS_PER_US, "args": about}


def _name(process: int, name: str) -> dict[str, Any]:
    return {"name": "process_name", "ph": "M", "pid": process, "tid": 0, "args": {"name": name}}


def _thread(process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": "thread_name", "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
