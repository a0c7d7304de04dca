"""Which attention replica of an instance a request is on."""

from scheduler_core.types.plan import Grant, StepPlan
from scheduler_core.types.shape import StepShape, shape_of_grants


class Ranks:
    """Puts each request, when it joins, on the replica that has the fewest, the first of several; it stays there.

    A request that comes back after a preemption joins anew.
    """

    def __init__(self, count: int) -> None:
        self._held = [0] * count
        self._rank: dict[int, int] = {}

    def shapes(self, plan: StepPlan) -> list[StepShape]:
        """What each replica computes in a step, those with nothing to do left out. O(grants)."""
        for request in plan.released:
            self.leave(request)
        grants: list[list[Grant]] = [[] for _ in self._held]
        for grant in plan.grants:
            grants[self._of(grant.request)].append(grant)
        return [shape_of_grants(part) for part in grants if part]

    def leave(self, request: int) -> None:
        """A request gave up its place; nothing where it has none."""
        rank = self._rank.pop(request, None)
        if rank is not None:
            self._held[rank] -= 1

    def _of(self, request: int) -> int:
        rank = self._rank.get(request)
        if rank is None:
            rank = self._rank[request] = self._held.index(min(self._held))
            self._held[rank] += 1
        return rank
