"""A request inside an instance."""

from typing import Final

from scheduler_core.request.lifecycle import TRANSITIONS, Event, State, next_state
from scheduler_core.request.progress import Progress
from scheduler_core.request.spec import RequestSpec
from scheduler_core.types.plan import Phase

# Bound once: in CPython 3.11 reading a member off its enum class costs ten times a global.
_QUEUED = State.QUEUED
_RECOMPUTE = Phase.RECOMPUTE
_PREFILL = Phase.PREFILL
_DECODE = Phase.DECODE

APART: Final = -1


class LiveRequest(Progress):
    """Progress of a request with its place, its block table and what policies may ask about it.

    ``stop_at`` is the number of known tokens at which it ends by length. ``blocks`` is the number of blocks it holds;
    ``table`` their ids in order, where blocks have identities. ``joined`` and ``lane`` belong to
    `scheduler_core.sched.cohort`: while ``joined`` is not `APART`, the cursors are those of that tick.
    ``keys`` are the prefix identities of its full blocks as far as needed, ``published`` how many of them are indexed.
    ``lost_until`` is the position up to which tokens had been computed before the last preemption.
    ``answers`` is false while only its prompt is computed here, and the first token elsewhere; from position
    ``decodes_from`` on, its grants are decode.
    While it is swapped out, ``host_table`` are the host blocks that hold the KV of its first ``saved`` tokens.
    """

    __slots__ = (
        "answers",
        "blocks",
        "decodes_from",
        "hit_tokens",
        "host_table",
        "id",
        "joined",
        "keys",
        "lane",
        "lost_until",
        "pledge",
        "preemptions",
        "published",
        "run_seq",
        "saved",
        "seq",
        "spec",
        "state",
        "stop_at",
        "table",
    )

    def __init__(self, spec: RequestSpec, *, seq: int, model_length: int) -> None:
        super().__init__(spec.prompt_tokens)
        self.spec = spec
        self.id = spec.id
        self.seq = seq
        self.state = _QUEUED
        stop_at = spec.prompt_tokens + spec.output_limit
        self.stop_at = stop_at if stop_at < model_length else model_length
        self.blocks = 0
        self.table: list[int] = []
        self.host_table: list[int] = []
        self.saved = 0
        self.keys: list[int] = []
        self.published = 0
        self.pledge = 0
        self.hit_tokens = 0
        self.preemptions = 0
        self.run_seq = -1
        self.lost_until = 0
        self.answers = True
        self.decodes_from = spec.prompt_tokens
        self.joined = APART
        self.lane = 0

    @property
    def emitted(self) -> int:
        """Output tokens so far."""
        return self.known - self.spec.prompt_tokens

    @property
    def worst_tokens(self) -> int:
        """Most positions whose KV can ever be written: the last emitted token's never is."""
        return self.stop_at - 1

    @property
    def prefilling(self) -> bool:
        """Whether more than the newest token is still to be granted."""
        return self.known + self.promised - self.granted > 1 or self.granted < self.decodes_from

    @property
    def stage(self) -> str:
        """``queue``, ``prefill`` or ``decode``: where it would be found now."""
        if self.state is _QUEUED:
            return "queue"
        return "decode" if self.emitted else "prefill"

    def phase(self) -> Phase:
        """What the next grant's compute is for: again, for the prompt, or for the next token."""
        if self.granted < self.lost_until:
            return _RECOMPUTE
        return _PREFILL if self.granted < self.decodes_from else _DECODE

    def may_draft(self, most: int) -> int:
        """Draft tokens, at most ``most``, beside a grant of all that is due: who decodes has as many as it may emit."""
        if self.phase() is not _DECODE:
            return 0
        return max(0, min(most, self.stop_at - self.known - self.promised - 1))

    def apply(self, event: Event) -> None:
        """Go through the lifecycle table; an illegal event raises and changes nothing."""
        state = TRANSITIONS.get((self.state, event))
        self.state = next_state(self.state, event) if state is None else state
