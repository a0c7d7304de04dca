"""Records that stand for several steps, spelled out: one `Step` for each, as a step-by-step run would have written."""

from collections.abc import Iterable, Iterator
from itertools import count

from scheduler_core.types.intervals import COMPUTE
from scheduler_core.types.plan import Phase
from scheduler_core.types.records import Admitted, Record, Resumed, Step, Steps
from scheduler_core.types.shape import StepShape, shape_of_rows, shape_of_step
from scheduler_core.types.time import Ns

Lanes = list[tuple[str, str, Ns, Ns]]

_DECODE = Phase.DECODE.value


def expand(records: Iterable[Record]) -> Iterator[Record]:
    """``records`` with every `Steps` replaced by its steps; their grants are in order of admission, without digests."""
    order: dict[int, int] = {}
    admissions = count()
    along: dict[int, dict[int, tuple[int, int]]] = {}  # by instance: request -> (epoch, next position)
    for record in records:
        if isinstance(record, Steps):
            yield from _spelled_out(record, along.setdefault(record.instance, {}), order)
            continue
        if isinstance(record, Admitted | Resumed):
            order[record.request] = next(admissions)
        yield record


def shapes(records: Iterable[Record]) -> Iterator[StepShape]:
    """What each step's duration depends on, spelled out or not. O(changes) a step."""
    courses: dict[int, dict[int, int]] = {}  # by instance: request -> position of its grant less number of the step
    sums: dict[int, int] = {}
    for record in records:
        if isinstance(record, Step):
            yield shape_of_step(record)
        elif isinstance(record, Steps):
            along = courses.setdefault(record.instance, {})
            total = sums.get(record.instance, 0) - sum(along.pop(request) for request in record.left)
            for request, _epoch, start in record.joined:
                along[request] = start - record.id
                total += start - record.id
            sums[record.instance] = total
            for step in range(record.id, record.id + len(record.available_ns)):
                yield shape_of_rows(record.grants, len(along), total + len(along) * (step + 1))


def lanes_of(record: Steps) -> Iterator[tuple[Ns, Ns, Lanes]]:
    """(planned, available, lanes) of each step of ``record``."""
    lanes, planned = record.lanes, record.planned_ns
    fixed = sum(end - start for kind, _, start, end in lanes if kind != COMPUTE)
    for number, available in enumerate(record.available_ns):
        if number:
            at, left, lanes = planned, available - planned - fixed, []
            for kind, resource, start, end in record.lanes:
                length = left if kind == COMPUTE else end - start
                lanes.append((kind, resource, at, at + length))
                at += length
        yield planned, available, lanes
        planned = available


def _spelled_out(record: Steps, along: dict[int, tuple[int, int]], order: dict[int, int]) -> Iterator[Step]:
    for request in record.left:
        del along[request]
    for request, epoch, start in record.joined:
        along[request] = epoch, start
    for number, (planned, available, lanes) in enumerate(lanes_of(record)):
        rows = [(request, epoch, start, 1, _DECODE, 1, 0) for request, (epoch, start) in along.items()]
        rows += record.grants
        rows.sort(key=lambda row: order[row[0]])
        yield Step(
            id=record.id + number,
            digest="",
            planned_ns=planned,
            available_ns=available,
            grants=rows,
            lanes=lanes,
            stalled=record.stalled,
            kv_used=record.kv_used[number],
            kv_cached=record.kv_cached[number],
            kv_free=record.kv_free[number],
            waiting=record.waiting,
            running=record.running,
            paused=record.paused,
            budget=record.budget,
            instance=record.instance,
            host_used=record.host_used,
            copied_out=record.copied_out,
            copied_in=record.copied_in,
            evicted_ahead=record.evicted_ahead,
            copied_on_write=record.copied_on_write,
        )
        for request, (epoch, start) in along.items():
            along[request] = epoch, start + 1
