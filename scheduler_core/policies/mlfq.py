"""Multi-level feedback queues with skip-join, after FastServe 187a274 (FS-01 to FS-05; arXiv 2305.05920).

Short answers are served first without knowing any length: a request sinks a level whenever it has used up the quantum
of its own, and a long prompt joins below the levels whose quantum its prefill would use up at once.
"""

from collections.abc import Iterable, Mapping, Reversible
from dataclasses import dataclass
from typing import NamedTuple

from scheduler_core.sched.view import RequestView, View
from scheduler_core.types.plan import Grant
from scheduler_core.types.reasons import Outcome, Preempt
from scheduler_core.types.time import Ns


class LevelRules(NamedTuple):
    """``levels`` queues; level q has a quantum of ``quantum_ns`` * 2^q of execution, the last one no end.

    ``prefill_token_ns`` estimates what a prompt token takes; who has waited ``starvation_ns`` rises to level 0.
    """

    levels: int = 6
    quantum_ns: Ns = 10_000_000
    prefill_token_ns: float = 100_000.0
    starvation_ns: Ns | None = 3_000_000_000

    def level_of_prefill(self, tokens: int) -> int:
        """The first level whose quantum covers the prefill of ``tokens`` (FS-01)."""
        level, estimate = 0, tokens * self.prefill_token_ns
        while level < self.levels - 1 and self.quantum_ns << level < estimate:
            level += 1
        return level


@dataclass(slots=True)
class _Standing:
    level: int
    served_ns: Ns = 0
    waits_since_ns: Ns = 0


class SkipJoinLevels:
    """Levels of all live requests: an order, a choice of victims, and the account that both go by.

    A newcomer joins at the back of its level, a request that was stopped at the front of its own (FS-03), where it
    waits with its KV if the policy has that swapped. A waiting request of a higher level takes the slot of a running
    one of the lowest, of those the one admitted last, and its blocks where those of who waits are not enough (FS-05).

    Bound on starvation: who has waited ``starvation_ns`` comes before everybody (`AgedQueue`), and is of level 0 from
    then on, so that every running request of a lower level gives way to it (FS-04; the artefact looks only every 1,000
    iterations). Waiting is counted from entering the queue, not from a last run that never was.
    """

    first_come: bool = False
    for_blocks: bool = True
    reads_progress: bool = True

    def __init__(self, rules: LevelRules) -> None:
        self._rules = rules
        self._standing: dict[int, _Standing] = {}
        self._now_ns: Ns = 0
        self._last: tuple[Ns, tuple[int, ...]] = (0, ())
        self._returns = 0

    def level(self, request: RequestView) -> int:
        """The level of a live request."""
        return self._of(request).level

    # --- order -------------------------------------------------------------------------------------------------

    def key(self, request: RequestView) -> tuple[int, ...]:
        """Level, those who come back before newcomers, the last to come back first."""
        standing = self._of(request)
        if request.run_seq < 0:
            return (standing.level, 1, 0)
        standing.waits_since_ns = self._now_ns
        self._returns += 1
        return (standing.level, 0, -self._returns)

    # --- slots -------------------------------------------------------------------------------------------------

    def pick(self, head: RequestView, running: Iterable[RequestView], short: int) -> RequestView | None:
        """The last admitted of the lowest level, if that is below the level of ``head`` now."""
        worst = max(running, key=lambda request: (self._of(request).level, request.run_seq), default=None)
        return worst if worst is not None and self._of(worst).level > self._level_now(head) else None

    # --- account -----------------------------------------------------------------------------------------------

    def begun(self, now_ns: Ns) -> None:
        """Charge the step before this one to those who took part in it."""
        since_ns, ran = self._last
        for request in ran:
            standing = self._standing.get(request)
            if standing is not None:
                self._charge(standing, now_ns - since_ns)
        self._now_ns, self._last = now_ns, (now_ns, ())

    def planned(self, view: View, grants: Mapping[int, Grant]) -> None:
        """Note who takes part in this step; a starving one that got in is of level 0 from now on."""
        for request in grants:
            standing = self._standing[request]
            if self._starved(standing):
                standing.level = standing.served_ns = 0
            standing.waits_since_ns = view.now_ns
        self._last = (view.now_ns, tuple(grants))

    def ended(self, request: RequestView, outcome: Outcome) -> None:
        """Forget the request."""
        self._standing.pop(request.id, None)

    def _charge(self, standing: _Standing, served_ns: Ns) -> None:
        standing.served_ns += served_ns
        last = standing.level == self._rules.levels - 1
        if not last and standing.served_ns > self._rules.quantum_ns << standing.level:
            standing.level += 1
            standing.served_ns = 0

    def _level_now(self, request: RequestView) -> int:
        standing = self._of(request)
        return 0 if self._starved(standing) else standing.level

    def _starved(self, standing: _Standing) -> bool:
        bound = self._rules.starvation_ns
        return bound is not None and self._now_ns - standing.waits_since_ns >= bound

    def _of(self, request: RequestView) -> _Standing:
        standing = self._standing.get(request.id)
        if standing is None:
            level = self._rules.level_of_prefill(request.spec.prompt_tokens)
            standing = self._standing[request.id] = _Standing(level, waits_since_ns=request.spec.arrival_ns)
        return standing


@dataclass(frozen=True, slots=True)
class LowestLevel:
    """Whom to stop for a block: the last admitted of the lowest level, which may be the requester (FS-05)."""

    levels: SkipJoinLevels
    reason: Preempt = Preempt.NO_BLOCKS
    reads_progress: bool = True

    def pick(self, requester: RequestView, running: Reversible[RequestView]) -> RequestView | None:
        return max(reversed(running), key=lambda request: (self.levels.level(request), request.run_seq))
