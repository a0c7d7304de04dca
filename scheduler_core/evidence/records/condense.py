"""Steps that are told one by one, told as `Steps`: who goes on decoding is not named again in every step.

The reverse of `scheduler_core.evidence.records.expand`. A reader then looks at a request when it begins to decode along
and when it stops, not at each of its tokens.
"""

from scheduler_core.types.plan import Phase
from scheduler_core.types.records import Step, Steps

_DECODE = Phase.DECODE.value

Row = tuple[int, int, int, int, str, int, int]


class Condenser:
    """Takes the steps of one instance in order."""

    def __init__(self) -> None:
        self._due: frozenset[Row] = frozenset()

    def take(self, step: Step) -> Steps:
        """``step`` with those who decode along left out; it has no drafts, spread or device bytes, or they are lost."""
        grants = frozenset(step.grants)
        going_on = grants & self._due
        others, joined = [], []
        if len(going_on) < len(step.grants):
            for row in step.grants:
                if row in going_on:
                    continue
                request, epoch, start, length, phase, sampled, hit = row
                if length == 1 and phase == _DECODE and sampled and not hit:
                    joined.append((request, epoch, start))
                else:
                    others.append(row)
        left = [row[0] for row in self._due - going_on] if len(going_on) < len(self._due) else []
        rows = [*going_on, *((request, epoch, start, 1, _DECODE, 1, 0) for request, epoch, start in joined)]
        self._due = frozenset([(request, epoch, start + 1, 1, _DECODE, 1, 0) for request, epoch, start, *_ in rows])
        return Steps(
            id=step.id,
            planned_ns=step.planned_ns,
            available_ns=[step.available_ns],
            joined=joined,
            left=sorted(left),
            grants=others,
            lanes=step.lanes,
            stalled=step.stalled,
            kv_used=[step.kv_used],
            kv_cached=[step.kv_cached],
            kv_free=[step.kv_free],
            waiting=step.waiting,
            running=step.running,
            paused=step.paused,
            budget=step.budget,
            instance=step.instance,
            host_used=step.host_used,
            copied_out=step.copied_out,
            copied_in=step.copied_in,
            evicted_ahead=step.evicted_ahead,
            copied_on_write=step.copied_on_write,
        )
