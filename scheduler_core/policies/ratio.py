"""Admission by an estimate of how much of their limits running requests will use (G-09, G-16)."""

from collections.abc import Iterable

from scheduler_core.sched.decisions import Deferral
from scheduler_core.sched.view import RequestView, View
from scheduler_core.types.reasons import Defer

CLIP_TOKENS = 4096
DECAY_STEPS = 600
FLOOR_SHARE = 0.14
INITIAL = 0.7
TOKENS_PER_SURVIVOR = 20


class NewTokenRatio:
    """The estimated share of its remaining limit that a running request will still use, and admission by it.

    The ratio starts at 0.7 x conservativeness, falls linearly to 14 % of that over 600 decode steps, and is reset by
    what survivors have used when memory ran out (G-16). A request is admitted while prompt, clipped limit and one page
    fit in what is free less the estimated need of those that run (G-09); requests still in prefill count in full.
    """

    def __init__(self, *, page: int, conservativeness: float = 1.0) -> None:
        self._page = page
        self._initial = min(1.0, INITIAL * conservativeness)
        self._floor = self._initial * FLOOR_SHARE
        self._decay = (self._initial - self._floor) / DECAY_STEPS
        self.ratio = self._initial

    # --- watch -------------------------------------------------------------------------------------------------

    def stepped(self, *, decoded: bool) -> None:
        """Decay by one decode step."""
        if decoded:
            self.ratio = max(self._floor, self.ratio - self._decay)

    def preempted(self, survivors: Iterable[RequestView]) -> None:
        """``min(1, (emitted + 20 n) / (limits + 1))`` over the ``n`` survivors."""
        count = emitted = limits = 0
        for request in survivors:
            count += 1
            emitted += request.emitted
            limits += request.spec.output_limit
        self.ratio = min(1.0, (emitted + TOKENS_PER_SURVIVOR * count) / (limits + 1))

    def idle(self) -> None:
        """Start over."""
        self.ratio = self._initial

    # --- admission ---------------------------------------------------------------------------------------------

    def decide(self, reserve_blocks: int, room_blocks: int, view: View) -> Deferral | None:
        """Admit if the reserve (see `PromptAndClippedLimit`) is less than the room left by the estimate."""
        need = reserve_blocks * self._page + self._page
        have = room_blocks * self._page - round(self._estimate(view))
        return None if need < have or not view.running else Deferral(Defer.NO_BLOCKS, need, have)

    def _estimate(self, view: View) -> float:
        total = 0.0
        for request in view.running_requests():
            left = min(request.spec.output_limit - request.emitted, CLIP_TOKENS)
            if request.emitted:
                total += left * self.ratio
            else:
                total += left + request.known - request.granted + self._page
        return total


class PromptAndClippedLimit:
    """Known tokens and what is left of the limit, at most 4,096 (G-09); nothing is kept for later."""

    pledges: bool = False

    def tokens(self, request: RequestView) -> int:
        """Positions that must be in sight."""
        return request.known + min(request.spec.output_limit - request.emitted, CLIP_TOKENS)
