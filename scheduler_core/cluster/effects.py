"""What moving requests changed: who is where now, who is over, whom to plan."""

from scheduler_core.sched.plan import Ended


class Effects:
    """Pairs (request, member it moved to) and (member, request that ended), and members that can be planned anew.

    ``resumed`` are (request, tokens its caller got) of requests that another instance took over from a dead one.
    """

    __slots__ = ("ended", "moved", "resumed", "touched")

    def __init__(self) -> None:
        self.moved: list[tuple[int, int]] = []
        self.ended: list[tuple[int, Ended]] = []
        self.resumed: list[tuple[int, int]] = []
        self.touched: set[int] = set()
