"""Writes the steps of a simulation as evidence: a stretch of equal ones as one record."""

from collections.abc import Container, Iterable

from scheduler_core.drive.ports import Sink
from scheduler_core.request.live import LiveRequest
from scheduler_core.sched.plan import FusedStep, Occupancy
from scheduler_core.sched.recorded import MakeUp
from scheduler_core.sim.lanes import Placed
from scheduler_core.types.plan import Phase
from scheduler_core.types.records import Record, Steps
from scheduler_core.types.time import Ns

_DECODE = Phase.DECODE.value

Row = tuple[int, int, int, int, str, int, int]


class StepLog:
    """A sink that takes steps beside records, and writes them before the next record."""

    def __init__(self, sink: Sink, budget: int) -> None:
        self._sink = sink
        self._budget = budget
        self._open: Steps | None = None

    def write(self, record: Record) -> None:
        """Write ``record`` after the steps so far."""
        self.flush()
        self._sink.write(record)

    def flush(self) -> None:
        """Write the steps so far."""
        if self._open is not None:
            self._sink.write(self._open)
            self._open = None

    def step(self, step: FusedStep, made: MakeUp, placed: Placed, planned_ns: Ns, rows: list[Row]) -> None:
        """Take a step that came back, with the ``rows`` of those who do not decode along."""
        now = made.occupancy
        if not (rows or step.moves) and made.repeats and self._continues(now):
            self.again(placed.available_ns, (now.kv_used, now.kv_cached, now.kv_free))
            return
        self.flush()
        self._open = Steps(
            id=step.id,
            planned_ns=planned_ns,
            available_ns=[placed.available_ns],
            joined=made.joined,
            left=made.left,
            grants=rows,
            lanes=[(kind, resource, start, end) for kind, resource, start, end in placed.lanes],
            stalled=list(made.stalled),
            kv_used=[now.kv_used],
            kv_cached=[now.kv_cached],
            kv_free=[now.kv_free],
            waiting=now.waiting,
            running=now.running,
            paused=now.paused,
            budget=self._budget,
            host_used=now.host_used,
            copied_out=step.copied_out,
            copied_in=step.copied_in,
            evicted_ahead=step.evicted_ahead,
            copied_on_write=step.copied_on_write,
        )

    def again(self, available_ns: Ns, blocks: tuple[int, int, int]) -> None:
        """The newest step, in which all decode along, came again; ``blocks`` were used, cached and free."""
        last = self._open
        assert last is not None
        last.available_ns.append(available_ns)
        last.kv_used.append(blocks[0])
        last.kv_cached.append(blocks[1])
        last.kv_free.append(blocks[2])

    def _continues(self, now: Occupancy) -> bool:
        """Whether the newest step differs from one that repeats it in nothing that a record has once."""
        last = self._open
        if last is None or last.grants or last.stalled or last.copied_out or last.copied_in or last.evicted_ahead:
            return False
        if last.copied_on_write:
            return False
        return (last.waiting, last.running, last.paused, last.host_used) == (
            now.waiting,
            now.running,
            now.paused,
            now.host_used,
        )


def rows_of(step: FusedStep, live: Container[int], cut: Iterable[LiveRequest]) -> list[Row]:
    """Rows of `Steps.grants`: a grant counts as sampled when its token was taken, not where the request was ``cut``.

    ``live`` are the requests that were not ended while the step ran, ``cut`` those that were, of who decodes along.
    """
    rows = [
        (g.request, g.epoch, g.start, g.length, g.phase.value, int(g.samples and g.request in live), g.hit_tokens)
        for g in step.grants
    ]
    return rows + [(request.id, request.epoch, request.known - 1, 1, _DECODE, 0, 0) for request in cut]
