"""Layers 4 and 5 of a policy: which instance does what, and how requests go from one to another."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from scheduler_core.spec.base import Name, PositiveFloat, PositiveInt, Share, Spec


def _joined(value: object) -> object:
    """Names in one word, ``a+b``, so that a search can choose between groups; also as one of several, as forms send."""
    if isinstance(value, str):
        return tuple(value.split("+"))
    if isinstance(value, list | tuple):
        return tuple(name for item in value for name in (item.split("+") if isinstance(item, str) else (item,)))
    return value


class Scaling(Spec):
    """When instances are started and drained. What exists is the topology's; ``least`` of it are always on."""

    by: Literal["queue", "busy", "wait"] = Field(
        "queue",
        description="Pressure is requests that are not over, busy share, or the estimated ms of prompts that wait, per "
        "instance on or starting.",
    )
    least: PositiveInt = Field(1, description="Instances that are always on.")
    up_at: PositiveFloat = Field(8.0, description="Pressure above which more are started.")
    down_at: float = Field(2.0, ge=0, description="Pressure below which one is drained.")
    window_s: PositiveFloat = Field(5.0, description="How long pressure must be beyond a bound.")
    every_s: PositiveFloat = Field(1.0, description="Time between two looks at the pressure.")
    cooldown_s: float = Field(30.0, ge=0, description="Least time between a start and a drain, or the reverse.")

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if self.down_at >= self.up_at:
            raise ValueError(f"down_at ({self.down_at:g}) must be below up_at ({self.up_at:g})")
        return self


class MigrationSpec(Spec):
    """Live migration: a request goes on decoding while its KV is copied to a less loaded instance.

    Load is the KV tokens of all requests of an instance over what its pool holds.
    """

    above: PositiveFloat = Field(0.8, le=100, description="Load above which an instance gives requests away.")
    every_ms: PositiveFloat = Field(1000.0, le=3_600_000, description="Time between two looks at the loads.")
    pick: Literal["shortest", "longest", "last"] = Field(
        "shortest", description="Which running request goes: with the fewest tokens, the most, or admitted last."
    )
    last_blocks: PositiveInt = Field(
        16, le=100_000, description="The request stops once this many blocks or fewer are left to copy."
    )
    most_stages: int = Field(
        3,
        ge=2,
        le=64,
        description="A copy that is not as far in this many stages, the last included, is dropped.",
    )


class Transferring(Spec):
    """Admission by transfer: requests that wait go to another instance once theirs has been saturated for long."""

    wait_ms: PositiveFloat = Field(
        2000.0, description="An instance is saturated while the prompts that wait there are estimated to take longer."
    )
    window_s: PositiveFloat = Field(5.0, description="How long it must be saturated, at every look.")
    every_s: PositiveFloat = Field(1.0, le=3600, description="Time between two looks.")


class Rebalancing(Spec):
    """Split: the ratio of prefill to decode. An instance moves from the pool that can spare one to the one that is
    short, once it is empty."""

    prefill_wait_ms: PositiveFloat = Field(
        1000.0, description="Prefill is short while the prompts that wait are estimated to take longer, per instance."
    )
    decode_kv_share: Share = Field(
        0.8, gt=0, description="Decode is short while its requests, and those that wait for it, hold more of its KV."
    )
    window_s: PositiveFloat = Field(5.0, description="How long a pool must be short, and the other able to spare one.")
    every_s: PositiveFloat = Field(1.0, le=3600, description="Time between two looks.")
    cooldown_s: float = Field(30.0, ge=0, description="Least time between a move and one the other way.")


class TierPool(Spec):
    """The instances of a tier."""

    groups: Annotated[tuple[Name, ...], BeforeValidator(_joined), Field(min_length=1)] = Field(
        description="The target's groups that serve this tier and no other (a+b for two)."
    )
    overflow: Annotated[tuple[Name, ...], BeforeValidator(_joined)] | None = Field(
        None, description="Groups that may help out; absent: none, requests wait for their own."
    )
    overflow_at: PositiveFloat = Field(
        8.0, description="Overflow: while each instance of its own has this many requests that are not over, or more."
    )


class PoolsSection(Spec):
    """Layers 4 and 5, pools: which instance does what."""

    layout: Literal["single", "replicas", "split"] | None = Field(
        None,
        description="One instance that does everything; equal ones behind a router; or some that compute prompts and "
        "others that decode.",
    )
    route: (
        Literal[
            "round_robin",
            "least_loaded",
            "two_choices",
            "sticky",
            "prefix",
            "first_token",
            "fewest_tokens",
            "freest",
            "kv_cost",
        ]
        | None
    ) = Field(
        None,
        description="Where a request goes: each instance in turn; the one with the fewest requests; the better of two "
        "drawn ones; where its session's first turn went; where most of its prompt is cached; where its first token is "
        "predicted soonest; where the fewest prompt tokens wait; where most KV is free per request; or where prompt "
        "tokens to compute (times prefix_weight) and KV tokens held add up to least.",
    )
    prefix_weight: float | None = Field(
        None,
        ge=0,
        le=100,
        description="Route kv_cost: what a prompt token to compute counts against a KV token held. 0: load alone. "
        "Absent: 1.",
    )
    prefix_fetch_ratio: float | None = Field(
        None,
        ge=1,
        le=1000,
        description="Route first_token: where another instance has more than this many times as much of a prompt's "
        "beginning cached, that is fetched over the link before the rest is computed, and kept. Absent: never.",
    )
    refuse: Literal["never", "promise"] | None = Field(
        None,
        description="promise: a request is refused on arrival where its first token, or with prefill and decode apart "
        "the pace of its decoding, is predicted to miss what its tier was promised.",
    )
    hold: dict[Name, Annotated[int, Field(ge=0)]] | None = Field(
        None,
        description="How many instances of each of the target's groups are held and paid for; groups not named, and "
        "all when absent: every one that exists.",
    )
    scale: Scaling | None = Field(None, description="Replicas: when instances are started and drained; absent: never.")
    scale_prefill: Scaling | None = Field(
        None, description="Split: when instances that compute prompts are started and drained; absent: never."
    )
    scale_decode: Scaling | None = Field(
        None, description="Split: when instances that decode are started and drained; absent: never."
    )
    rebalance: Rebalancing | None = Field(
        None, description="Split: when an instance moves from prefill to decode or back; absent: never."
    )
    transfer: Transferring | None = Field(
        None, description="When requests that wait go to another instance; absent: never."
    )
    tiers: dict[Name, TierPool] | None = Field(
        None,
        max_length=64,
        description="Tiers with instances of their own; other tiers use the groups that none of them names. Absent: "
        "all share all.",
    )
    migrate: MigrationSpec | None = Field(
        None, description="Live migration between replicas, or between instances that decode; absent: none."
    )
    prefill: Annotated[tuple[Name, ...], BeforeValidator(_joined)] | None = Field(
        None, description="Split: the target's groups that compute prompts (a+b for two); all others decode."
    )
    handoff: Literal["cheapest", "transfer", "recompute", "stay"] | None = Field(
        None,
        description="Split: what becomes of a computed prompt. Its KV is moved, computed again where it decodes, or "
        "stays and decodes where it is; cheapest takes the sooner of the first two.",
    )
    handoff_budget_ms: PositiveFloat | None = Field(
        None, description="Split: a way predicted to take longer gives way to the other, then to staying."
    )
    patience_ms: float | None = Field(
        None, ge=0, description="Split: a request that finds no room to decode for this long stays; absent: it waits."
    )
    broken: Literal["transfer", "recompute", "stay", "fail"] | None = Field(
        None, description="Split: what follows a transfer that broke off."
    )
    lease_ms: float | None = Field(
        None,
        ge=0,
        le=3_600_000,
        description="Split: blocks of a transfer that is given up with bytes under way, as by an abort, are held at "
        "both sides until the bytes are reported, and this long at most; a later report is ignored. Absent: bytes stop "
        "at once, and blocks are free.",
    )
    first_token: Literal["prefill", "arrival", "decode"] | None = Field(
        None,
        description="Split: who emits the first token. prefill computes and emits it; prefill computes it and it is "
        "emitted on arrival of the KV; or the first decode step computes it.",
    )
    reserve: Literal["before", "arrival", "ready"] | None = Field(
        None,
        description="Split: when room to decode is kept: before the prompt may be computed at all; on arrival if there "
        "is some; or once the prompt is computed.",
    )
    move: Literal["after", "chunks", "layers"] | None = Field(
        None,
        description="Split: KV is moved after prefill; chunk by chunk as steps compute it; or layer by layer while a "
        "step computes it. The last two need reserve: before or arrival.",
    )
    stream_tokens: int | None = Field(
        None,
        ge=0,
        le=1_000_000,
        description="Split, move chunks or layers: KV of a shorter prompt than this is moved after prefill all the "
        "same. Absent: none is too short.",
    )
    borrow_tokens: PositiveInt | None = Field(
        None,
        description="Split: both places of a request are chosen on arrival. A prefill instance whose queue is not "
        "empty takes no prompt that brings its waiting prompt tokens above this, a decode instance nobody whose prompt "
        "and output limit do not fit beside what was promised there; where none is left, one of the other pool is "
        "borrowed until it is idle. Absent: nobody is borrowed.",
    )
    accept_share: Share | None = Field(
        None,
        description="Split: an instance takes a request in only while those that have arrived there and wait hold less "
        "than this share of its KV blocks. Absent: 100%.",
    )
    headroom_tokens: int | None = Field(
        None,
        ge=0,
        le=1_000_000,
        description="Split: room for this many tokens stays free for each request at an instance that takes one in.",
    )
    urgent_headroom_tokens: int | None = Field(
        None,
        ge=0,
        le=10_000_000,
        description="Route freest, and migrate: so many KV tokens count as used where a request of a priority below 0 "
        "is, so that others go, or move, elsewhere. Absent: none.",
    )
    retracted_first: bool | None = Field(
        None,
        description="Split: nobody gets a place at an instance while requests that lost their blocks there have not "
        "come back. Absent: no.",
    )
    on_death: Literal["recompute", "fail"] | None = Field(
        None,
        description="What becomes of the requests of an instance that died: others compute them again and go on, or "
        "they fail. Instances die where the experiment says so (events.outages).",
    )
    notice_ms: float | None = Field(
        None,
        ge=0,
        le=3_600_000,
        description="How long after an instance's death it is missed; until then requests are still sent to it.",
    )
    look_every_ms: float | None = Field(
        None, ge=0, description="How often the router learns the load of the instances. 0: it always knows."
    )
