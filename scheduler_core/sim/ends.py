"""When members of a cohort emit their last token: known when they join, so nobody is asked step by step."""

import heapq
from collections.abc import Mapping

from scheduler_core.request.live import LiveRequest
from scheduler_core.sched.commit import AT_LIMIT, STOPPED

NEVER = 1 << 62


class EndTimes:
    """Last tokens by the cohort's tick. ``next_tick`` is the earliest one, `NEVER` when there is none.

    A member that leaves early stays listed: it is told from one that stayed by epoch and tick of joining.
    """

    __slots__ = ("_at", "_ticks", "next_tick")

    def __init__(self) -> None:
        self._at: dict[int, list[tuple[int, int, int, str]]] = {}
        self._ticks: list[int] = []
        self.next_tick = NEVER

    def schedule(self, member: LiveRequest, output_tokens: int) -> None:
        """Note when a new member, whose answer is ``output_tokens`` long, emits its last token. O(log ticks)."""
        left, reason = output_tokens - member.emitted, STOPPED
        limit = member.stop_at - member.known
        if limit < left:
            left, reason = limit, AT_LIMIT
        tick = member.joined + left
        entry = (member.id, member.epoch, member.joined, reason)
        ends = self._at.get(tick)
        if ends is not None:
            ends.append(entry)
            return
        self._at[tick] = [entry]
        heapq.heappush(self._ticks, tick)
        self.next_tick = self._ticks[0]

    def take(self, tick: int, live: Mapping[int, LiveRequest]) -> dict[int, str]:
        """Remove what is due by ``tick``; the members that are still there, with the reason of their end."""
        ends: dict[int, str] = {}
        ticks = self._ticks
        while ticks and ticks[0] <= tick:
            for request, epoch, joined, reason in self._at.pop(heapq.heappop(ticks)):
                member = live.get(request)
                if member is not None and member.epoch == epoch and member.joined == joined:
                    ends[request] = reason
        self.next_tick = ticks[0] if ticks else NEVER
        return ends
