"""A fused instance that keeps the records of its decisions and tells of each step what evidence needs to know."""

from dataclasses import dataclass, replace

from scheduler_core.request.live import APART, LiveRequest
from scheduler_core.sched.cohort import Cohort
from scheduler_core.sched.fused import FusedInstance
from scheduler_core.sched.plan import FusedStep, Occupancy
from scheduler_core.sched.policy import PolicySet
from scheduler_core.types.errors import CallerError
from scheduler_core.types.plan import Grant
from scheduler_core.types.reasons import Stall

_HELD = Stall.HELD_BY_POLICY


@dataclass(frozen=True, slots=True)
class MakeUp:
    """What a planned step consists of, against the one before it; see `scheduler_core.types.records.Steps`."""

    joined: list[tuple[int, int, int]]
    left: list[int]
    grants: tuple[Grant, ...]
    stalled: tuple[tuple[int, str], ...]
    occupancy: Occupancy

    @property
    def repeats(self) -> bool:
        """Whether those decode along who did in the step before, and nobody else is in the step."""
        return not (self.joined or self.left or self.grants or self.stalled)

    def without(self, cut: list[LiveRequest]) -> "MakeUp":
        """The same but for requests that were ended while the step ran, and do not decode along in it after all."""
        if not cut:
            return self
        gone = {request.id for request in cut}
        new = {row[0] for row in self.joined}
        joined = [row for row in self.joined if row[0] not in gone]
        return replace(self, joined=joined, left=[*self.left, *(gone - new)])


class RecordedInstance(FusedInstance):
    """As `FusedInstance`, with the records that a plain `Instance` keeps; for each step, who has come and gone."""

    def __init__(self, policy: PolicySet) -> None:
        if policy.limits.draft_tokens:
            raise CallerError("stretches of steps tell of one token a request and step; play drafts step by step")
        super().__init__(policy)
        self._changed = _Changes(policy.limits.block_size)
        self._state.cohort = self._changed
        self._state.keeps_records = True
        self.undisturbed = None  # it keeps no records
        self._along: set[int] = set()

    def make_up(self, step: FusedStep) -> MakeUp:
        """Of the step just planned. O(changes since the last one), but O(running) where the cohort starts or stops."""
        cohort, along, touched = self._changed, self._along, self._changed.touched
        if not step.decoders:
            left, joined = list(along), []
            along.clear()
        elif not along:
            left, joined = [], [_row(cohort, member) for member in cohort]
            along.update([row[0] for row in joined])
        else:
            left = [number for number, member in touched.items() if number in along and member.joined == APART]
            along.difference_update(left)
            new = [member for number, member in touched.items() if number not in along and member.joined != APART]
            joined = [_row(cohort, member) for member in new]
            along.update([row[0] for row in joined])
        touched.clear()
        return MakeUp(joined, left, step.grants, self._stalled(step), self.occupancy())

    def take_cut_off(self) -> list[LiveRequest]:
        """Requests decoding along that were ended since `make_up`: the step that runs has a grant of each, in vain."""
        if not self._changed.touched:
            return []
        cut = [member for number, member in self._changed.touched.items() if number in self._along]
        self._along.difference_update([member.id for member in cut])
        return cut

    def _stalled(self, step: FusedStep) -> tuple[tuple[int, str], ...]:
        if step.decoders or not self._state.cohort.count:
            return self._builder.stalled()
        cause = self._builder.stall_cause().value
        return tuple((number, cause) for number in self._state.running if number not in self._builder.grants)


class _Changes(Cohort):
    """A cohort that notes whom it took in or let go."""

    __slots__ = ("touched",)

    def __init__(self, block_size: int) -> None:
        super().__init__(block_size)
        self.touched: dict[int, LiveRequest] = {}

    def join(self, request: LiveRequest) -> None:
        super().join(request)
        self.touched[request.id] = request

    def leave(self, request: LiveRequest, *, granted: bool = False) -> None:
        super().leave(request, granted=granted)
        self.touched[request.id] = request


def _row(cohort: Cohort, member: LiveRequest) -> tuple[int, int, int]:
    return member.id, member.epoch, cohort.known(member) - 1
