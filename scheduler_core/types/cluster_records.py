"""Evidence of several instances: where requests go, how they are handed over, what is started and drained."""

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from scheduler_core.types.time import Ns


@dataclass(frozen=True, slots=True)
class Routed:
    """A request went to an instance of a cluster, by ``score`` (smaller is better); ``next_best`` is another's."""

    kind: ClassVar[str] = "routed"
    at_ns: Ns
    request: int
    instance: int
    score: int = 0
    next_best: int | None = None


@dataclass(frozen=True, slots=True)
class Parked:
    """A request left the steps of its instance with its blocks, ready to go to another one.

    Where it is not ``answered``, its prompt is computed, but its first token is emitted later (`Emitted`), or computed
    by the step after it has landed.
    """

    kind: ClassVar[str] = "parked"
    at_ns: Ns
    request: int
    instance: int
    answered: bool = True


@dataclass(frozen=True, slots=True)
class Held:
    """A request may not be computed before there is room where it will decode; with ``over``, now it may."""

    kind: ClassVar[str] = "held"
    at_ns: Ns
    request: int
    instance: int
    over: bool = False


@dataclass(frozen=True, slots=True)
class Emitted:
    """A first token that ``instance`` computed is handed to the caller: its request has arrived where it decodes."""

    kind: ClassVar[str] = "emitted"
    at_ns: Ns
    request: int
    instance: int


@dataclass(frozen=True, slots=True)
class Handoff:
    """What was decided about a parked request: transfer, recompute, stay or fail.

    ``transfer_ns`` and ``recompute_ns`` are the predictions it was decided by; ``reason`` is not empty where the first
    choice was not possible.
    """

    kind: ClassVar[str] = "handoff"
    at_ns: Ns
    request: int
    source: int
    destination: int
    action: str
    reason: str = ""
    transfer_ns: Ns = 0
    recompute_ns: Ns = 0


@dataclass(frozen=True, slots=True)
class Transferred:
    """``bytes`` of a request's KV moved over a link from ``start_ns`` on; several pieces may make up one handoff.

    ``alone_ns`` is what they would have taken with the link to themselves, None where nobody knows; time beyond that
    counts as waiting for the link, and as if all of the wait had come first.
    """

    kind: ClassVar[str] = "transferred"
    at_ns: Ns
    start_ns: Ns
    request: int
    source: int
    destination: int
    bytes: int
    alone_ns: Ns | None = None

    @property
    def moves_ns(self) -> Ns:
        """When the bytes began to move, had they waited first and then had the link to themselves."""
        return self.start_ns if self.alone_ns is None else max(self.start_ns, self.at_ns - self.alone_ns)


@dataclass(frozen=True, slots=True)
class Landed:
    """A request waits for a slot at an instance that holds the KV of its first ``tokens`` positions.

    Its transfer is over, or it ``stayed`` where it was.
    """

    kind: ClassVar[str] = "landed"
    at_ns: Ns
    request: int
    instance: int
    epoch: int
    tokens: int
    stayed: bool = False


@dataclass(frozen=True, slots=True)
class TransferFailed:
    """A transfer broke off; nothing of it can be used."""

    kind: ClassVar[str] = "transfer_failed"
    at_ns: Ns
    request: int
    source: int
    destination: int
    reason: str


@dataclass(frozen=True, slots=True)
class Leased:
    """A transfer was given up with bytes under way: blocks at both sides are held until they are reported, or too late.

    How many, at its ``source`` and its ``destination``.
    """

    kind: ClassVar[str] = "leased"
    at_ns: Ns
    request: int
    source: int
    destination: int
    source_blocks: int
    destination_blocks: int


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """What was held for a given-up transfer is free: its bytes were ``reported``, or the lease ``expired``."""

    kind: ClassVar[str] = "lease_ended"
    at_ns: Ns
    request: int
    source: int
    destination: int
    how: str


@dataclass(frozen=True, slots=True)
class Migration:
    """A live migration went on: ``action`` is started, stage, stopped, landed or dropped (``reason`` says why).

    Up to ``stopped`` the request goes on decoding at ``source``; ``tokens`` positions were copied or are being so.
    """

    kind: ClassVar[str] = "migration"
    at_ns: Ns
    request: int
    source: int
    destination: int
    action: str
    stage: int
    tokens: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Revoked:
    """A request that waited with delivered KV lost it, so that others can go on; it computes it anew."""

    kind: ClassVar[str] = "revoked"
    at_ns: Ns
    request: int
    blocks: int
    tokens_lost: int


@dataclass(frozen=True, slots=True)
class OutageStage:
    """An instance died, its death was noticed, it is being drained, or it is back."""

    kind: ClassVar[str] = "outage"
    at_ns: Ns
    instance: int
    what: str


@dataclass(frozen=True, slots=True)
class Lost:
    """What an instance that died held of a request: the KV of ``tokens`` positions. Another one takes the request over,
    or it fails.

    ``token_lost``: also a first token that was computed, but not emitted yet.
    """

    kind: ClassVar[str] = "lost"
    at_ns: Ns
    request: int
    instance: int
    tokens: int
    token_lost: bool = False


@dataclass(frozen=True, slots=True)
class Scaled:
    """An instance of a cluster is now off, starting, on or draining, and why."""

    kind: ClassVar[str] = "scaled"
    at_ns: Ns
    instance: int
    power: str
    reason: str


@dataclass(frozen=True, slots=True)
class ColdStartStage:
    """A starting instance is in this stage of its cold start from now to ``until_ns``: place, image, weights, graphs.

    A stage that takes no time has no record.
    """

    kind: ClassVar[str] = "cold_start_stage"
    at_ns: Ns
    instance: int
    stage: str
    until_ns: Ns


@dataclass(frozen=True, slots=True)
class Reassigned:
    """A request that waits ``leaves`` an instance that was saturated for long, and ``arrives`` at another.

    It ``returns`` where nobody takes it in there any more.

    Prompts that wait at the source were estimated to take ``wait_ns``, more than ``bound_ns`` at every look of a whole
    window; those at the destination ``there_ns``.
    """

    kind: ClassVar[str] = "reassigned"
    at_ns: Ns
    request: int
    source: int
    destination: int
    action: str
    wait_ns: Ns = 0
    bound_ns: Ns = 0
    there_ns: Ns = 0


@dataclass(frozen=True, slots=True)
class PrefixMoved:
    """The first ``tokens`` of a prompt are fetched from another instance, which has computed them, before the rest is.

    The request waits for nothing else from ``leaves`` on until it ``arrives`` and is cached where the request is, or is
    ``lost`` with its source. ``bytes`` of them were not there already.
    """

    kind: ClassVar[str] = "prefix_moved"
    at_ns: Ns
    request: int
    source: int
    destination: int
    action: str
    tokens: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Overflowed:
    """A request went to an instance that is not its tier's own: those were full, or out."""

    kind: ClassVar[str] = "overflowed"
    at_ns: Ns
    request: int
    instance: int
    tier: str


@dataclass(frozen=True, slots=True)
class PoolChanged:
    """An instance works for another pool now: prefill, decode, or both (mixed), or is leaving its own; and why."""

    kind: ClassVar[str] = "pool_changed"
    at_ns: Ns
    instance: int
    pool: str
    reason: str


ClusterRecord: TypeAlias = (
    Routed
    | Held
    | Parked
    | Emitted
    | Handoff
    | Transferred
    | Landed
    | TransferFailed
    | Migration
    | Revoked
    | OutageStage
    | Lost
    | Scaled
    | ColdStartStage
    | PoolChanged
    | Reassigned
    | Overflowed
    | PrefixMoved
    | Leased
    | LeaseEnded
)
