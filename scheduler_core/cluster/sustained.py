"""Hysteresis: what has to last before something is done about it, and what has to pass before it is undone."""

from scheduler_core.types.time import Ns


class Sustained:
    """Looks at which side of its bounds a figure is: 1 above, -1 below, 0 between them.

    Something may be done once it was on one side at every look of ``window_ns``, and, where the last thing done was for
    the other side, ``cooldown_ns`` after that.
    """

    def __init__(self, window_ns: Ns, cooldown_ns: Ns = 0) -> None:
        self._window_ns, self._cooldown_ns = window_ns, cooldown_ns
        self._since: tuple[int, Ns] | None = None
        self._last: tuple[int, Ns] | None = None

    def due(self, side: int, now_ns: Ns) -> bool:
        """A look: whether something may be done for ``side`` now."""
        if side == 0:
            self._since = None
            return False
        if self._since is None or self._since[0] != side:
            self._since = (side, now_ns)
        cools = self._last is not None and self._last[0] != side and now_ns - self._last[1] < self._cooldown_ns
        return now_ns - self._since[1] >= self._window_ns and not cools

    def done(self, side: int, now_ns: Ns) -> None:
        """Something was done for ``side``: the window begins anew."""
        self._last = (side, now_ns)
        self._since = None
