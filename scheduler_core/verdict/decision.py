"""The decision table: from judged gates to accept, tune or reject."""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler_core.verdict.gates import LEAST_PAIRS
from scheduler_core.verdict.schema import Decision, Gate
from scheduler_core.verdict.sequential import next_look
from scheduler_core.verdict.wording import join, rank


@dataclass(frozen=True, slots=True)
class Ruling:
    """A decision and the one reason for it; ``deciding`` are the metrics it rests on."""

    decision: Decision
    reason: str
    deciding: tuple[str, ...] = ()


def rule(primary: Gate, guards: Sequence[Gate], *, pairs: int, exact: bool) -> Ruling:
    """Apply the table, most certain rows first.

    Absent evidence and too few pairs never give more than ``tune``. Priority is runnability > latency > throughput:
    a surely broken guard rejects when it ranks with the primary or above, else it asks for tuning.
    """
    missing = [gate.metric for gate in (primary, *guards) if gate.state == "missing"]
    if missing:
        return Ruling(Decision.TUNE, f"evidence is missing for {join(missing)}", tuple(missing))
    if pairs < LEAST_PAIRS and not exact:
        plural = "" if pairs == 1 else "s"
        return Ruling(
            Decision.TUNE, f"not enough evidence: {pairs} pair{plural} of runs, at least {LEAST_PAIRS} are needed"
        )
    if primary.state == "failed":
        if primary.label == "worse":
            return Ruling(Decision.REJECT, f"{primary.metric} is worse", (primary.metric,))
        return Ruling(Decision.REJECT, f"no gain in {primary.metric} worth having", (primary.metric,))
    if primary.state == "undecided":
        if primary.label == "better":
            return Ruling(
                Decision.TUNE, f"{primary.metric} is better, but not surely by {primary.margin * 100:.3g} %",
                (primary.metric,),
            )  # fmt: skip
        return Ruling(Decision.TUNE, f"{primary.metric} is undecided", (primary.metric,))
    return _guarded(primary, guards)


def further_look(looks: Sequence[int], pairs: int, ruling: Ruling, gates: Sequence[Gate]) -> int | None:
    """Pairs of the next declared look while it can change the answer; None when it cannot, or there is none.

    It can while the ruling is ``tune`` and rests on too few pairs or on a gate that is undecided. Evidence that is
    missing or a guard that broke is not mended by more of the same.
    """
    if ruling.decision is not Decision.TUNE:
        return None
    states = {gate.metric: gate.state for gate in gates}
    open_ = not ruling.deciding or any(states.get(metric) == "undecided" for metric in ruling.deciding)
    return next_look(looks, pairs) if open_ else None


def _guarded(primary: Gate, guards: Sequence[Gate]) -> Ruling:
    """The primary is surely better by its margin; the guards decide."""
    broken = [gate for gate in guards if gate.state == "failed"]
    fatal = [gate.metric for gate in broken if _rank(gate) <= rank(primary.metric) and gate.metric != "stall_share"]
    if fatal:
        return Ruling(Decision.REJECT, f"{primary.metric} is better, at the cost of {join(fatal)}", tuple(fatal))
    if broken:
        names = [gate.metric for gate in broken]
        return Ruling(Decision.TUNE, f"{primary.metric} is better, but {join(names)} broke", tuple(names))
    undecided = [gate.metric for gate in guards if gate.state == "undecided"]
    if undecided:
        return Ruling(
            Decision.TUNE, f"{primary.metric} is better, but {join(undecided)} is undecided", tuple(undecided)
        )
    return Ruling(Decision.ACCEPT, f"{primary.metric} is better and no guard broke", (primary.metric,))


def _rank(gate: Gate) -> int:
    """Rank of a guard; a class's figure (``tenant a: e2e_p95_ms``) ranks as its metric."""
    return rank(gate.metric.rpartition(": ")[2])
