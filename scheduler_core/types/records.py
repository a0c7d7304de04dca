"""Evidence records: the append-only account of a run, from which alone every figure is computed.

Each record is a frozen dataclass; `encode` gives its JSON object (``kind`` first) and `decode` reads it back. Times
are integer ns on the run's reference clock, which starts at 0. A reader refuses a schema it does not know.
"""

from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, TypeAlias, get_args

from scheduler_core.types.client_records import ClientRecord, Streamed
from scheduler_core.types.cluster_records import ClusterRecord
from scheduler_core.types.errors import ExecutorError
from scheduler_core.types.spread import Spread
from scheduler_core.types.time import Ns

SCHEMA = "headway-records/1"


@dataclass(frozen=True, slots=True)
class RunStarted:
    """First record: what was run on what. ``level`` and ``source`` are those of every value computed from here.

    ``instances`` of a cluster, by index: name, group, KV blocks and devices; empty for one instance. ``kv_blocks`` and
    ``devices`` are those of all of them. ``observed_hit_share`` is the plan's: what the server which logged the traffic
    found in its cache.
    """

    kind: ClassVar[str] = "run_started"
    run: str
    attempt: int
    plan_digest: str
    policy_digest: str
    policy: dict[str, Any]
    target: dict[str, Any]
    level: str
    source: str
    offered: int
    kv_blocks: int
    block_size: int
    token_budget: int
    fingerprint: dict[str, Any] = field(default_factory=dict)
    instances: list[dict[str, Any]] = field(default_factory=list)
    devices: int = 1
    observed_hit_share: float | None = None
    schema: str = SCHEMA


@dataclass(frozen=True, slots=True)
class Loaded:
    """The model was loaded and the instance warmed: never part of a request's time."""

    kind: ClassVar[str] = "loaded"
    start_ns: Ns
    end_ns: Ns
    device_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Arrived:
    """A request reached the system. ``at_ns`` is the intended send time, ``seen_ns`` when the driver took it up.

    ``group`` is the number of the first of several samples of one prompt, None for the only one.
    """

    kind: ClassVar[str] = "arrived"
    at_ns: Ns
    seen_ns: Ns
    request: int
    prompt_tokens: int
    output_limit: int
    tenant: str
    tier: str
    group: int | None = None


@dataclass(frozen=True, slots=True)
class Admitted:
    """A waiting request got blocks; ``resumed`` when it had run before and was preempted.

    Of the ``hit_tokens`` that were found in the cache, the last ``host_tokens`` were copied from host memory. Where
    they are instead those of another sample of the prompt, ``shared_tokens`` says so, and is as many.
    """

    kind: ClassVar[str] = "admitted"
    at_ns: Ns
    request: int
    epoch: int
    hit_tokens: int
    resumed: bool
    step: int
    host_tokens: int = 0
    shared_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Gated:
    """The gate did more with a request than let it queue: ``disposal`` and the ``trigger`` with its compared numbers.

    A throttled request may be considered from ``until_ns`` on. ``output_limit`` and ``priority`` are those it was taken
    in with. The rest is what the gate decided by.
    """

    kind: ClassVar[str] = "gated"
    at_ns: Ns
    request: int
    disposal: str
    trigger: str
    need: int
    have: int
    until_ns: Ns
    output_limit: int
    priority: int
    waiting: int
    kv_used: int
    kv_total: int
    queued_tokens: int
    wait_ns: Ns
    work_tokens: int
    attainment: float | None = None


@dataclass(frozen=True, slots=True)
class Deferred:
    """The head of the queue was passed over; written when the reason changes, not at every step."""

    kind: ClassVar[str] = "deferred"
    at_ns: Ns
    request: int
    reason: str
    need: int
    have: int


@dataclass(frozen=True, slots=True)
class Step:
    """One executed step. ``grants`` rows: request, epoch, start, length, phase, sampled (0 / 1), hit tokens.

    ``stalled`` rows: request, cause, for each resident request that got nothing. ``lanes`` rows: kind, resource,
    start, end. The step spans ``planned_ns`` (planning began) to ``available_ns`` (its tokens could be read); only a
    ``host_gap`` lane, the host's book-keeping since the step before, lies ahead of it. A step may begin before the one
    before it has come back; records stand in the order of results, each step's decisions right before it.
    ``digest`` is over the plan with the names of its blocks, and empty where they have none. KV counts are blocks after
    planning; ``copied_out`` and ``copied_in`` are blocks that the step copied between device and host, ``host_used``
    those of the host pool that hold something, ``evicted_ahead`` cached ones that were evicted to have clean ones for
    the next steps, ``copied_on_write`` those copied on the device because a sample was to write to one that it shared.
    Step ids count per ``instance``. ``spread`` is there where an instance is spread over devices.

    ``drafts`` rows: request, drafted, accepted. The request's grant ends with so many drafted tokens; it emitted those
    that were accepted and one more.
    """

    kind: ClassVar[str] = "step"
    id: int
    digest: str
    planned_ns: Ns
    available_ns: Ns
    grants: list[tuple[int, int, int, int, str, int, int]]
    lanes: list[tuple[str, str, Ns, Ns]]
    stalled: list[tuple[int, str]]
    kv_used: int
    kv_cached: int
    kv_free: int
    waiting: int
    running: int
    paused: int
    budget: int
    device_bytes: int | None = None
    instance: int = 0
    host_used: int = 0
    copied_out: int = 0
    copied_in: int = 0
    evicted_ahead: int = 0
    copied_on_write: int = 0
    spread: Spread | None = None
    drafts: list[tuple[int, int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Steps:
    """Consecutive steps of one make-up, in place of a `Step` each; `scheduler_core.evidence.records.expand` undoes it.

    Some requests **decode along**: each step grants one token to each of them, which it emits. ``joined`` rows
    (request, epoch, start) do so from the first of these steps on, those in ``left`` do not any more. ``grants`` and
    ``stalled`` are those of others, as in `Step`; where there are any, or blocks were copied or evicted ahead of need,
    it is one step.

    The first step is number ``id``, planned at ``planned_ns``; each further one is planned when the one before it is
    available. Times and block counts are lists with one number a step, the other counts are the same in all. ``lanes``
    are the first step's; in a further one they have the same order and lengths, but ``compute`` takes what is left.
    """

    kind: ClassVar[str] = "steps"
    id: int
    planned_ns: Ns
    available_ns: list[Ns]
    joined: list[tuple[int, int, int]]
    left: list[int]
    grants: list[tuple[int, int, int, int, str, int, int]]
    lanes: list[tuple[str, str, Ns, Ns]]
    stalled: list[tuple[int, str]]
    kv_used: list[int]
    kv_cached: list[int]
    kv_free: list[int]
    waiting: int
    running: int
    paused: int
    budget: int
    instance: int = 0
    host_used: int = 0
    copied_out: int = 0
    copied_in: int = 0
    evicted_ahead: int = 0
    copied_on_write: int = 0


@dataclass(frozen=True, slots=True)
class Preempted:
    """A running or paused request lost its blocks and waits again; ``tokens_lost`` tokens must be computed anew.

    ``copy_ns`` and ``recompute_ns`` are the times that were compared where swapping was an alternative; ``need`` and
    ``have`` host blocks where it was meant and there was no room.
    """

    kind: ClassVar[str] = "preempted"
    at_ns: Ns
    request: int
    epoch: int
    reason: str
    blocks: int
    tokens_lost: int
    step: int
    copy_ns: Ns | None = None
    recompute_ns: Ns | None = None
    need: int | None = None
    have: int | None = None


@dataclass(frozen=True, slots=True)
class Paused:
    """A running request stopped and kept what it had computed, ``tokens`` tokens of KV in ``blocks`` blocks.

    ``how``: ``keep`` leaves them on the device, because ``need`` blocks were wanted and ``have`` were free, or because
    its slot alone was wanted; ``swap`` copies them to the host, ``copy_ns`` and ``recompute_ns`` being the times that
    were compared, if any were.
    """

    kind: ClassVar[str] = "paused"
    at_ns: Ns
    request: int
    epoch: int
    how: str
    reason: str
    blocks: int
    tokens: int
    step: int
    need: int | None = None
    have: int | None = None
    copy_ns: Ns | None = None
    recompute_ns: Ns | None = None


@dataclass(frozen=True, slots=True)
class Resumed:
    """A paused request runs again with the ``tokens`` it had computed, in ``blocks`` blocks, kept or copied back."""

    kind: ClassVar[str] = "resumed"
    at_ns: Ns
    request: int
    epoch: int
    how: str
    blocks: int
    tokens: int
    step: int


@dataclass(frozen=True, slots=True)
class Swapped:
    """The KV of ``tokens`` tokens of a paused request goes ``to`` the ``host`` or the ``device``; it waits on.

    It goes to the host because others needed its blocks, or to keep room for newcomers, ``copy_ns`` and
    ``recompute_ns`` being the times that were compared, if any were; it comes back as soon as there is room for it.
    ``epoch`` is the one from then on.
    """

    kind: ClassVar[str] = "swapped"
    at_ns: Ns
    request: int
    epoch: int
    to: str
    blocks: int
    tokens: int
    step: int
    copy_ns: Ns | None = None
    recompute_ns: Ns | None = None


@dataclass(frozen=True, slots=True)
class CacheReset:
    """The prefix cache was to be forgotten, as asked for ``asked_ns``.

    It was (``done``) if no block was in use, else ``in_use`` blocks of device and host stood in the way. ``preempted``
    requests lost theirs to it first where it was ``forced``; ``dropped`` cached blocks hold nothing known any more.
    """

    kind: ClassVar[str] = "cache_reset"
    at_ns: Ns
    asked_ns: Ns
    forced: bool
    done: bool
    in_use: int
    preempted: int
    dropped: int
    instance: int = 0


@dataclass(frozen=True, slots=True)
class Tie:
    """The two best logits were closer than the declared tolerance: another batch shape may pick the other token.

    ``position`` counts the request's output tokens from 0.
    """

    kind: ClassVar[str] = "tie"
    request: int
    position: int
    margin: float


@dataclass(frozen=True, slots=True)
class Finished:
    """A request ended, one way or another. ``tokens`` are the emitted ids where the target makes real ones."""

    kind: ClassVar[str] = "finished"
    at_ns: Ns
    request: int
    outcome: str
    stage: str
    reason: str
    output_tokens: int
    need: int | None = None
    have: int | None = None
    tokens: list[int] | None = None


@dataclass(frozen=True, slots=True)
class RunFinished:
    """Last record: the run ended by itself (``complete``) or was stopped."""

    kind: ClassVar[str] = "run_finished"
    at_ns: Ns
    complete: bool
    reason: str
    steps: int
    laws_checked: int


# What a load client tells about a server that it sees from outside, in place of steps.

Record: TypeAlias = (
    RunStarted
    | Loaded
    | Arrived
    | Gated
    | Admitted
    | Deferred
    | Step
    | Steps
    | Preempted
    | Paused
    | Resumed
    | Swapped
    | CacheReset
    | Tie
    | Finished
    | RunFinished
    | ClusterRecord
    | ClientRecord
)

KINDS: dict[str, type[Record]] = {cls.kind: cls for cls in get_args(Record)}

_NAMES = {cls: frozenset(item.name for item in fields(cls)) for cls in KINDS.values()}

# Fields that hold rows: JSON knows lists only.
_ROWS: dict[type[Record], tuple[str, ...]] = {
    Step: ("grants", "lanes", "stalled", "drafts"),
    Steps: ("joined", "grants", "lanes", "stalled"),
    Streamed: ("rows",),
}


def encode(record: Record) -> dict[str, Any]:
    """JSON object of a record, ``kind`` first."""
    return {"kind": record.kind, **asdict(record)}


def decode(data: dict[str, Any]) -> Record:
    """The record of a JSON object made by `encode`; `ExecutorError` names an unknown kind or field."""
    values = dict(data)
    kind = values.pop("kind", None)
    cls = KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ExecutorError(f"unknown record kind {kind!r}; known: {', '.join(KINDS)}")
    if not values.keys() <= _NAMES[cls]:
        raise ExecutorError(f"{kind}: unknown fields {sorted(values.keys() - _NAMES[cls])}")
    for name in _ROWS.get(cls, ()):
        if name in values:
            values[name] = [tuple(row) for row in values[name]]
    if cls is Step and values.get("spread") is not None:
        values["spread"] = Spread(*values["spread"])
    return cls(**values)
