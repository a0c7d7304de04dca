"""Reusable answers to the questions of `scheduler_core.sched.policy`; each names the rules it implements."""

from collections.abc import Iterable, Mapping, Reversible
from dataclasses import dataclass
from typing import ClassVar, Final

from scheduler_core.sched.decisions import INTERLEAVED, Deferral, Pass, Passes, Serve
from scheduler_core.sched.policy import Predictor
from scheduler_core.sched.view import RequestView, View
from scheduler_core.types.plan import Grant
from scheduler_core.types.reasons import Defer, Outcome, Preempt
from scheduler_core.types.time import Ns

# Bound once: in CPython 3.11 reading a member off its enum class costs ten times a global.
_NO_BLOCKS = Defer.NO_BLOCKS
_BATCH_RUNNING = Defer.BATCH_RUNNING

UNLIMITED: Final = (1 << 62) - 1

# --- order ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ByArrival:
    """First come, first served (V-02)."""

    first_come: bool = True

    def key(self, request: RequestView) -> tuple[int, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class ByPriority:
    """Smaller priority first, then arrival time, then order of submission (V-02).

    A preempted request has no bonus: one of equal priority that arrived earlier goes first. With ``by_entry`` what
    counts is when a request entered the queue, so that one which comes back goes last of its priority (G-08, G-14).
    """

    by_entry: bool = False
    first_come: bool = False

    def key(self, request: RequestView) -> tuple[int, ...]:
        return (request.spec.priority,) if self.by_entry else (request.spec.priority, request.spec.arrival_ns)


# --- shape ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunningThenWaiting:
    """Serve running requests in order of admission, then admit with what is left of the budget (V-01)."""

    def passes(self, view: View) -> Passes:
        return INTERLEAVED

    def wake_ns(self, view: View) -> Ns | None:
        return None


@dataclass(frozen=True, slots=True)
class WholeBatches:
    """Form a batch when idle, prefill it, decode it to the end; nobody joins (ST-01, ST-03, ST-04).

    ``max_wait_ns`` 0 takes whoever waits; else a batch smaller than ``size`` waits until its oldest request is that
    old, or no more can arrive.
    """

    size: int
    max_wait_ns: Ns = 0

    _forming: ClassVar[Passes] = Passes((Pass(Serve.WAITING),))
    _prefilling: ClassVar[Passes] = Passes((Pass(Serve.PREFILLS),), closed=Deferral(_BATCH_RUNNING, 1, 0))
    _decoding: ClassVar[Passes] = Passes((Pass(Serve.DECODES),), closed=Deferral(_BATCH_RUNNING, 1, 0))

    def passes(self, view: View) -> Passes:
        if view.running:
            return WholeBatches._prefilling if view.prefilling else WholeBatches._decoding
        due = self.wake_ns(view)
        if due is not None and due > view.now_ns:
            return Passes((), closed=Deferral(Defer.WAITING_FOR_BATCH, self.size, view.waiting))
        return WholeBatches._forming

    def wake_ns(self, view: View) -> Ns | None:
        head = view.head()
        if view.running or head is None or view.waiting >= self.size or view.arrivals_over:
            return None
        return head.spec.arrival_ns + self.max_wait_ns


@dataclass(frozen=True, slots=True)
class DecodesThenPrefills:
    """Decodes are never delayed: prefills and newcomers fill what they leave (SA-02 to SA-04, SA-06)."""

    _passes: ClassVar[Passes] = Passes((Pass(Serve.DECODES), Pass(Serve.PREFILLS), Pass(Serve.WAITING)))

    def passes(self, view: View) -> Passes:
        return DecodesThenPrefills._passes

    def wake_ns(self, view: View) -> Ns | None:
        return None


@dataclass(frozen=True, slots=True)
class PrefillsAlone:
    """A step prefills if it can, and then nothing else; otherwise it decodes (G-01; nano-vllm, mini-sglang)."""

    _passes: ClassVar[Passes] = Passes((Pass(Serve.PREFILLS), Pass(Serve.WAITING, ends_step=True), Pass(Serve.DECODES)))

    def passes(self, view: View) -> Passes:
        return PrefillsAlone._passes

    def wake_ns(self, view: View) -> Ns | None:
        return None


class PromptsFirst:
    """Prompts fill a step before decodes do, unless a decode was left out of ``most_skips`` steps in a row (SW-05).

    Decodes then come first once. It counts per request, and so must be among the policy's observers too.
    """

    _prompts: ClassVar[Passes] = Passes((Pass(Serve.PREFILLS), Pass(Serve.WAITING), Pass(Serve.DECODES)))
    _decodes: ClassVar[Passes] = Passes((Pass(Serve.DECODES), Pass(Serve.PREFILLS), Pass(Serve.WAITING)))

    def __init__(self, most_skips: int) -> None:
        self._most_skips = most_skips
        self._skips: dict[int, int] = {}

    def passes(self, view: View) -> Passes:
        skipped = max(self._skips.values(), default=0)
        return PromptsFirst._decodes if skipped >= self._most_skips else PromptsFirst._prompts

    def wake_ns(self, view: View) -> Ns | None:
        return None

    def begun(self, now_ns: Ns) -> None:
        """Nothing to do: counts change with what is planned."""

    def planned(self, view: View, grants: Mapping[int, Grant]) -> None:
        """Count for whom there was nothing left in this step."""
        left_out = [r.id for r in view.running_requests() if not r.prefilling and r.id not in grants]
        self._skips = {request: self._skips.get(request, 0) + 1 for request in left_out}

    def ended(self, request: RequestView, outcome: Outcome) -> None:
        """Who is over runs no more, and so is counted no more with the next step."""


# --- chunk ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WholeRequest:
    """As much as the budget allows."""

    def limit(self, request: RequestView, want: int, view: View) -> int:
        return UNLIMITED


@dataclass(frozen=True, slots=True)
class LongPrefillCap:
    """At most ``cap`` tokens a grant while another request runs or waits (V-07, V-09)."""

    cap: int

    def limit(self, request: RequestView, want: int, view: View) -> int:
        return self.cap if view.running + view.waiting > 1 else UNLIMITED


@dataclass(frozen=True, slots=True)
class LeftOfChunk:
    """Prefills get what decodes leave of ``chunk``, never less than nothing (SA-03, SA-05); decodes are not limited."""

    chunk: int
    budget: int

    def limit(self, request: RequestView, want: int, view: View) -> int:
        if not request.prefilling:
            return UNLIMITED
        return max(0, self.chunk - (self.budget - view.budget_left))


@dataclass(frozen=True, slots=True)
class FirstMayBeCut:
    """Only the first request of a step may be computed in part (nano-vllm); the others come whole or not at all."""

    budget: int

    def limit(self, request: RequestView, want: int, view: View) -> int:
        return UNLIMITED if view.budget_left == self.budget or want <= view.budget_left else 0


# --- memory ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KnownTokens:
    """Room for prompt and emitted tokens must be in sight, nothing is kept for later (V-11)."""

    pledges: bool = False

    def tokens(self, request: RequestView) -> int:
        return request.known


@dataclass(frozen=True, slots=True)
class FirstChunk:
    """Nothing beyond what the first grant needs must be in sight: admits most, and restarts most."""

    pledges: bool = False

    def tokens(self, request: RequestView) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class PromptAndPrediction:
    """Room for known tokens and what is predicted of the rest must be in sight, nothing is kept for later."""

    predictor: Predictor
    pledges: bool = False

    def tokens(self, request: RequestView) -> int:
        expected = request.known + self.predictor.expected(request) - request.emitted
        return min(expected, request.worst_tokens)


@dataclass(frozen=True, slots=True)
class WholePrompt:
    """Room for prompt and emitted tokens is taken at admission: a started prefill never fails (SA-03, SA-04)."""

    pledges: bool = True

    def tokens(self, request: RequestView) -> int:
        return request.known


@dataclass(frozen=True, slots=True)
class WorstCase:
    """Room for prompt and declared output limit must be in sight and stays promised: never preempts (ST-02)."""

    pledges: bool = True

    def tokens(self, request: RequestView) -> int:
        return request.worst_tokens


@dataclass(frozen=True, slots=True)
class RoomAboveWatermark:
    """Admit if the reserve fits in what is free and not promised, less a watermark beside running requests (V-12)."""

    watermark_blocks: int = 0

    def decide(self, reserve_blocks: int, room_blocks: int, view: View) -> Deferral | None:
        if self.watermark_blocks and view.running:
            room_blocks -= self.watermark_blocks
        if reserve_blocks <= room_blocks:
            return None
        return Deferral(_NO_BLOCKS, reserve_blocks, room_blocks)


# --- victim ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LastAdmitted:
    """The request admitted last (V-14, first-come-first-served)."""

    reason: Preempt = Preempt.NO_BLOCKS
    reads_progress: bool = False

    def pick(self, requester: RequestView, running: Reversible[RequestView]) -> RequestView | None:
        return next(iter(reversed(running)))


@dataclass(frozen=True, slots=True)
class WorstPriority:
    """The request with the largest (priority, arrival) (V-14, priority)."""

    reason: Preempt = Preempt.NO_BLOCKS
    reads_progress: bool = False

    def pick(self, requester: RequestView, running: Reversible[RequestView]) -> RequestView | None:
        return max(reversed(running), key=lambda r: (r.spec.priority, r.spec.arrival_ns, r.seq))


@dataclass(frozen=True, slots=True)
class LeastEmitted:
    """The request with the fewest emitted tokens, of those the longest prompt (G-18)."""

    reason: Preempt = Preempt.NO_BLOCKS
    reads_progress: bool = True

    def pick(self, requester: RequestView, running: Reversible[RequestView]) -> RequestView | None:
        return max(reversed(running), key=lambda r: (-r.emitted, r.spec.prompt_tokens, r.seq))


@dataclass(frozen=True, slots=True)
class Nobody:
    """Nobody is ever stopped: room was promised at admission."""

    reason: Preempt = Preempt.NO_BLOCKS
    reads_progress: bool = False

    def pick(self, requester: RequestView, running: Reversible[RequestView]) -> RequestView | None:
        return None


# --- slots ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UrgentTakesSlot:
    """A full batch gives up its worst request to one of strictly better priority; equals never push each other out."""

    for_blocks: bool = False
    reads_progress: bool = False

    def pick(self, head: RequestView, running: Iterable[RequestView], short: int) -> RequestView | None:
        worst = max(running, key=lambda r: (r.spec.priority, r.spec.arrival_ns, r.seq))
        return worst if worst.spec.priority > head.spec.priority else None
