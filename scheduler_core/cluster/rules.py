"""How a handoff is to be done, as a policy says it, and what may go wrong with one."""

import hashlib
from dataclasses import dataclass
from enum import StrEnum

from scheduler_core.types.time import Ns


class Action(StrEnum):
    """What becomes of a request whose prompt is computed."""

    TRANSFER = "transfer"
    RECOMPUTE = "recompute"
    STAY = "stay"
    FAIL = "fail"


class Reserve(StrEnum):
    """When room at a destination is kept.

    ``before`` the prompt may be computed at all (PD-01), on ``arrival`` if there is some (SW-01), or when the prompt is
    ``ready`` (DS-02).
    """

    BEFORE = "before"
    ARRIVAL = "arrival"
    READY = "ready"


class Move(StrEnum):
    """How bytes go: ``after`` prefill, in ``chunks`` as steps compute them (PD-02), or in ``layers`` within a step."""

    AFTER = "after"
    CHUNKS = "chunks"
    LAYERS = "layers"


class Emitter(StrEnum):
    """Who hands the first token to the caller.

    ``prefill`` computes and emits it; with ``arrival`` prefill computes it and it is emitted once the state has arrived
    (PD-06); with ``decode`` the first decode step computes it, over the last token of the prompt (V-33).
    """

    PREFILL = "prefill"
    ARRIVAL = "arrival"
    DECODE = "decode"


class Fallback(StrEnum):
    """Why another way was taken than the first choice."""

    NO_ROOM = "no_room"
    OVER_BUDGET = "over_budget"
    BROKEN_OFF = "broken_off"
    NEVER_FITS = "never_fits"
    INSTANCE_DIED = "instance_died"


@dataclass(frozen=True, slots=True)
class Rules:
    """The handoff as a policy. Times in ns; ``budget_ns`` and ``patience_ns`` None: no limit.

    ``prefer`` names an action, or ``cheapest``: whichever of transfer and recomputation is predicted to be sooner.
    What is predicted to take longer than ``budget_ns`` gives way to the other, then to staying. A request that finds no
    room for ``patience_ns`` stays: runnability before latency before throughput (R38). ``broken`` is what follows a
    transfer that broke off. ``first_token`` says who emits that one. KV of a token has ``kv_layers`` equal parts.

    A place at a destination is taken only while requests that have landed there and wait hold less than
    ``accept_share`` of its blocks (DS-02), and if ``headroom_tokens`` for each request there stay free (PD-04). KV of a
    prompt shorter than ``stream_tokens`` is moved after prefill, whatever ``move`` says (SW-04). With
    ``retracted_first`` nobody gets a place where requests wait that lost theirs (PD-05).
    """

    prefer: str
    budget_ns: Ns | None
    patience_ns: Ns | None
    broken: Action
    reserve: Reserve
    move: Move
    kv_bytes_per_token: int
    kv_layers: int = 1
    first_token: Emitter = Emitter.PREFILL
    accept_share: float = 1.0
    headroom_tokens: int = 0
    stream_tokens: int = 0
    retracted_first: bool = False


@dataclass(frozen=True, slots=True)
class Faults:
    """Transfers that break off or come late, drawn by a hash of seed, request and attempt: the same in every run."""

    broken_share: float = 0.0
    late_share: float = 0.0
    late_ns: Ns = 0
    seed: int = 0

    def broken(self, request: int, attempt: int) -> bool:
        """Whether this transfer breaks off when its bytes have moved."""
        return self.broken_share > 0 and self._draw("broken", request, attempt) < self.broken_share

    def delay_ns(self, request: int, attempt: int) -> Ns:
        """How much later than its last byte this transfer is reported."""
        late = self.late_share > 0 and self._draw("late", request, attempt) < self.late_share
        return self.late_ns if late else 0

    def _draw(self, stream: str, request: int, attempt: int) -> float:
        digest = hashlib.blake2b(f"{self.seed}/{stream}/{request}/{attempt}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") / (1 << 64)
