"""What the devices of parallel instances did, step by step and in sum."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler_core.evidence.columns import MISSING
from scheduler_core.types.intervals import COMPUTE, IntervalClass
from scheduler_core.types.records import Step
from scheduler_core.types.spread import Spread

TIMES = ("communication_ns", "hidden_comm_ns", "bubble_ns", "rank_wait_ns", "expert_wait_ns")
COUNTS = ("experts", "expert_tokens", "expert_dropped", "expert_most")
SPREAD_INTS = (*TIMES, *COUNTS)
_DEVICE = (COMPUTE, IntervalClass.COMMUNICATION.value, IntervalClass.SYNC_WAIT.value)
_NOWHERE = (MISSING,) * len(SPREAD_INTS)


def spread_row(spread: Spread | None) -> tuple[int, ...]:
    """The values of `SPREAD_INTS` of a step; `MISSING` where the instance is one device, or has no experts."""
    if spread is None:
        return _NOWHERE
    return tuple(spread) if spread.experts else (*spread[: len(TIMES)], *_NOWHERE[len(TIMES) :])


def spread_faults(step: Step) -> list[str]:
    """What does not add up in a step of a parallel instance; empty when all does."""
    told = step.spread
    if told is None:
        return []
    found: list[str] = []
    lengths = dict.fromkeys(_DEVICE, 0)
    for kind, _resource, start, end in step.lanes:
        if kind in lengths:
            lengths[kind] += end - start
    held = [(start, end) for kind, _resource, start, end in step.lanes if kind in lengths]
    span = max(end for _, end in held) - min(start for start, _ in held) if held else 0
    work = lengths[COMPUTE]
    if work + told.exposed_ns + told.waits_ns != span:
        found.append(f"{work} ns of work, {told.exposed_ns} exposed and {told.waits_ns} waited are not {span} ns")
    if lengths[IntervalClass.COMMUNICATION] != told.communication_ns:
        found.append(f"{told.communication_ns} ns communicated, lanes of {lengths[IntervalClass.COMMUNICATION]} ns")
    if not 0 <= told.hidden_ns <= min(told.communication_ns, span - told.exposed_ns):
        found.append(f"{told.hidden_ns} of {told.communication_ns} ns hidden in {span} ns, {told.exposed_ns} exposed")
    if min(told) < 0:
        found.append(f"something is negative in {tuple(told)}")
    kept = told.expert_tokens - told.expert_dropped
    if not told.expert_most <= kept <= told.expert_most * told.experts:
        found.append(f"{kept} choices kept by {told.experts} experts, the busiest has {told.expert_most}")
    return found


@dataclass
class SpreadTotals:
    """Sums over the steps of parallel instances in the measured window.

    ``imbalance`` sums the busiest expert's choices / mean over experts, over the ``routed`` steps.
    """

    steps: int = 0
    routed: int = 0
    imbalance: float = 0.0
    sums: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPREAD_INTS, 0))

    def add(self, values: Sequence[int]) -> None:
        """Count a step's values of `SPREAD_INTS`."""
        if values[0] == MISSING:
            return
        self.steps += 1
        for name, value in zip(SPREAD_INTS, values, strict=True):
            if value != MISSING:
                self.sums[name] += value
        experts, chosen, dropped, most = values[len(TIMES) :]
        if experts != MISSING and chosen > dropped:
            self.routed += 1
            self.imbalance += most * experts / (chosen - dropped)
