"""What moving requests changed: who is where now, who is over, whom to plan."""

from dataclasses import dataclass, field

from scheduler_core.sched.plan import Ended


@dataclass(slots=True)
class Effects:
    """Pairs (request, member it moved to) and (member, request that ended), and members that can be planned anew.

    ``resumed`` are (request, tokens its caller got) of requests that another instance took over from a dead one.
    """

    moved: list[tuple[int, int]] = field(default_factory=list)
    ended: list[tuple[int, Ended]] = field(default_factory=list)
    resumed: list[tuple[int, int]] = field(default_factory=list)
    touched: set[int] = field(default_factory=set)
