"""When members of a cohort emit their last token: known when they join, so nobody is asked step by step."""

import heapq

from scheduler_core.request.live import LiveRequest
from scheduler_core.sched.commit import AT_LIMIT, STOPPED
from scheduler_core.sched.world import Ends
from scheduler_core.types.time import NEVER


class EndTimes(Ends):
    """Last tokens by the cohort's tick. ``next_tick`` is the earliest one, `NEVER` when there is none.

    A member that leaves early stays listed; the tick of joining tells it from one that stayed.
    """

    __slots__ = ("_at", "_ticks", "next_tick")

    def __init__(self) -> None:
        self._at: dict[int, list[tuple[LiveRequest, int, str]]] = {}
        self._ticks: list[int] = []
        self.next_tick = NEVER

    def schedule(self, member: LiveRequest, left: int) -> None:
        """Note when a new member, whose answer has ``left`` tokens to go, emits its last one. O(log ticks)."""
        reason, limit = STOPPED, member.stop_at - member.known
        if limit < left:
            left, reason = limit, AT_LIMIT
        joined = member.joined
        tick = joined + left
        ends = self._at.get(tick)
        if ends is not None:
            ends.append((member, joined, reason))
            return
        self._at[tick] = [(member, joined, reason)]
        heapq.heappush(self._ticks, tick)
        self.next_tick = self._ticks[0]

    def take(self, tick: int) -> list[tuple[LiveRequest, str]]:
        """Remove what is due by ``tick``: the members that are still there, with the reason of their end."""
        ends: list[tuple[LiveRequest, str]] = []
        ticks = self._ticks
        while ticks and ticks[0] <= tick:
            for member, joined, reason in self._at.pop(heapq.heappop(ticks)):
                if member.joined == joined:
                    ends.append((member, reason))
        self.next_tick = ticks[0] if ticks else NEVER
        return ends
