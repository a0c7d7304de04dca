"""What became of the drafts of speculative decoding, step by step and in sum."""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_core.evidence.columns import MISSING
from scheduler_core.types.plan import Phase
from scheduler_core.types.records import RunStarted, Step, Steps

_DECODE = Phase.DECODE.value
DRAFT_INTS = ("drafts", "drafted_tokens", "accepted_tokens")
_NOWHERE = (MISSING,) * len(DRAFT_INTS)


def is_speculative(started: RunStarted | None) -> bool:
    """Whether the policy of a run drafts tokens."""
    execution = (started.policy.get("execution") if started is not None else None) or {}
    return bool(execution.get("draft_tokens"))


def draft_row(step: Step | Steps, *, speculative: bool) -> tuple[int, ...]:
    """The values of `DRAFT_INTS` of a step; `MISSING` where nobody drafts, as in stretches of steps."""
    drafts = step.drafts if isinstance(step, Step) else []
    if not drafts and not speculative:
        return _NOWHERE
    return len(drafts), sum(row[1] for row in drafts), sum(row[2] for row in drafts)


def draft_faults(step: Step) -> list[str]:
    """What does not add up in the drafts of a step; empty when all does."""
    found: list[str] = []
    grants = {row[0]: row for row in step.grants}
    for request, drafted, accepted in step.drafts:
        grant = grants.pop(request, None)
        if grant is None:
            found.append(f"request {request} has drafts without a grant, or twice")
            continue
        _request, _epoch, _start, length, phase, sampled, _hit = grant
        if phase != _DECODE or not 0 < drafted < length:
            found.append(f"request {request} has {drafted} drafts in a {phase} grant of {length} tokens")
        if not 0 <= accepted <= drafted * sampled:
            found.append(f"request {request} had {accepted} of {drafted} drafts accepted, sampled {sampled}")
    return found


@dataclass(slots=True)
class DraftTotals:
    """Sums over the steps of the measured window: drafts checked, their tokens, and those accepted.

    ``steps`` counts those in which there could have been some.
    """

    steps: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0

    def add(self, values: Sequence[int]) -> None:
        """Count a step's values of `DRAFT_INTS`."""
        if values[0] == MISSING:
            return
        self.steps += 1
        self.drafts += values[0]
        self.drafted += values[1]
        self.accepted += values[2]
