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
    fit in what is free less the estimated need of those that run (G-09); requests still in prefill count in full. With
    ``mixed`` the next token of those that decode is taken off as well: it is computed beside the prefill (G-03).
    """

    def __init__(self, *, page: int, conservativeness: float = 1.0, mixed: bool = False) -> None:
        self._page = page
        self._mixed = mixed
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

    def frees(self, request: RequestView) -> float:
        """What stopping a running request would add to the room: its pages, and what is kept for it."""
        return -(-request.granted // self._page) * self._page + self._kept((request,))

    def _estimate(self, view: View) -> float:
        return self._kept(view.running_requests())

    def _kept(self, requests: Iterable[RequestView]) -> float:
        total = 0.0
        for request in requests:
            left = min(request.spec.output_limit - request.emitted, CLIP_TOKENS)
            if request.emitted:
                total += left * self.ratio + self._mixed
            else:
                total += left + request.known - request.granted + self._page
        return total


class WorseByThreshold:
    """Running requests give way to a waiting one whose priority is better by more than ``threshold`` (G-14).

    Worst and newest first, for a slot or for memory, and for memory only if together they would free enough: the pages
    they hold and what the estimate keeps for them. Pages that others hold too are counted, as if they were free then.
    """

    for_blocks: bool = True
    reads_progress: bool = True

    def __init__(self, threshold: int, estimate: NewTokenRatio) -> None:
        self._threshold = threshold
        self._estimate = estimate

    def pick(self, head: RequestView, running: Iterable[RequestView], short: int) -> RequestView | None:
        """The worst of them; ``short`` is in tokens, as `NewTokenRatio` compares them."""
        worse = [r for r in running if r.spec.priority - head.spec.priority > self._threshold]
        if short and sum(self._estimate.frees(request) for request in worse) <= short:
            return None
        return max(worse, key=lambda r: (r.spec.priority, r.run_seq), default=None)


class PromptAndClippedLimit:
    """Known tokens and what is left of the limit, at most 4,096 (G-09); nothing is kept for later."""

    pledges: bool = False

    def tokens(self, request: RequestView) -> int:
        """Positions that must be in sight."""
        return request.known + min(request.spec.output_limit - request.emitted, CLIP_TOKENS)
