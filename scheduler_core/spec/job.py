"""The contract between whoever wants a run and the process that does it.

``python -m gpu_runner.run JOB.json`` reads a `RunJob`, works in its ``workdir``, and prints one JSON object a line on
standard output: the `Message` kinds below. Standard error is its log. The exit status is 0 when the result says
``succeeded``, else 1. SIGTERM asks it to stop: it ends the run ``cancelled``, keeping what was measured.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, TypeAdapter, model_validator

from scheduler_core.files import sha256_of
from scheduler_core.spec.base import PositiveFloat, PositiveInt, Seed, Spec
from scheduler_core.spec.events import EventsSpec
from scheduler_core.spec.fork import ForkJob
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.server import Access, ServerTarget
from scheduler_core.spec.studies import SearchSpec
from scheduler_core.spec.target import Profile, TargetSpec, TorchTarget
from scheduler_core.spec.workload import Tier
from scheduler_core.types.patience import Patience


class RunJob(Spec):
    """One execution of one arm: everything the process needs, nothing it has to ask for."""

    run: str
    attempt: PositiveInt = 1
    arm: str = "baseline"
    repeat: int = Field(0, ge=0)
    plan_file: str = Field(description="Path of the frozen arrival plan.")
    policy: PolicySpec
    target: TargetSpec
    profile: Profile | None = Field(
        None,
        description="Of a modelled target: the profile, resolved. Of kernels: what to set the run beside, if any.",
    )
    group_profiles: dict[str, Profile] = Field(
        {}, description="Of a cluster's groups that name a profile of their own: the profiles, resolved."
    )
    access: Access | None = Field(None, description="Of a server target: how this arm's deployment is reached.")
    fork: ForkJob | None = Field(None, description="What was in force until when; absent: ``policy``, always.")
    events: EventsSpec | None = Field(None, description="What happens to the instances beside the requests.")
    tiers: dict[str, Tier]
    warmup_share: float = 0.0
    workdir: str = Field(description="Scratch folder of this attempt; every file of the run is written there.")
    noise_seed: Seed = 0
    wall_limit_s: PositiveFloat = 600.0
    sample_interval_ms: PositiveFloat = 200.0
    segment_records: PositiveInt = 2000

    def patience(self) -> dict[str, Patience]:
        """The time limits of each tier that has some."""
        return {name: limits for name, tier in self.tiers.items() if (limits := tier.patience())}


class CalibrationJob(Spec):
    """One calibration, for ``python -m gpu_runner.calibrate JOB.json``: same messages, artifact ``profile.json``.

    Of ``target``, the engine on this machine, or of ``server``, by a probe from outside.
    """

    run: str
    attempt: PositiveInt = 1
    name: str = Field(description="Name of the profile to be made.")
    target: TorchTarget | None = None
    server: ServerTarget | None = None
    policy: PolicySpec = Field(
        PolicySpec(policy="as_served"),
        description="Of a server: what it is launched with, and settings that it does not show itself.",
    )
    access: Access | None = Field(None, description="Of a server: how it is reached.")
    quick: bool = Field(False, description="Fewer measured steps, for sizing a demo rather than for planning.")
    probe_s: float | None = Field(
        None, ge=10, le=600, description="Of a server: how long the probe takes; absent: 420 s, or 60 s when quick."
    )
    workdir: str
    wall_limit_s: PositiveFloat = 600.0

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.target is None) == (self.server is None):
            raise ValueError("give either target or server")
        if self.server is not None and len(self.server.given) != 1:
            raise ValueError("server: give exactly one of url, endpoint and launch")
        return self


class SearchJob(Spec):
    """One search, for ``python -m gpu_runner.search JOB.json``: same messages, artifact ``search.json``."""

    run: str
    attempt: PositiveInt = 1
    spec: SearchSpec
    profile: Profile = Field(description="Of the modelled target, resolved.")
    group_profiles: dict[str, Profile] = Field({}, description="Of a cluster's groups, as in a run.")
    plan_file: str = Field(description="Path of the frozen arrival plan.")
    workdir: str
    wall_limit_s: PositiveFloat = 3600.0


class StateMessage(Spec):
    """The run entered a state."""

    type: Literal["state"] = "state"
    state: Literal["starting", "running", "finalising"]


class ProgressMessage(Spec):
    """Requests ended so far, and the expected seconds to the end (None while unknown)."""

    type: Literal["progress"] = "progress"
    done: int
    total: int
    eta_s: float | None = None


class SampleMessage(Spec):
    """A live sample. ``seq`` counts from 1 without gaps within an attempt; ``values`` is a `Sample` as plain data."""

    type: Literal["sample"] = "sample"
    seq: PositiveInt
    values: dict[str, Any]


class SegmentMessage(Spec):
    """A closed, numbered evidence segment (JSON lines of records) lies in the work folder."""

    type: Literal["segment"] = "segment"
    number: PositiveInt
    file: str
    bytes: int
    records: int
    sha256: str


class ArtifactMessage(Spec):
    """A finished file: requests.parquet, steps.parquet, gaps.parquet, summary.json, audit.json, profile.json."""

    type: Literal["artifact"] = "artifact"
    name: str
    file: str
    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Self:
        """The message that announces the finished file ``path``."""
        return cls(name=path.name, file=str(path), bytes=path.stat().st_size, sha256=sha256_of(path))


class ResultMessage(Spec):
    """Last line: how it ended, the reason in one sentence, and the run's summary when there is one."""

    type: Literal["result"] = "result"
    outcome: Literal["succeeded", "failed", "cancelled"]
    reason: str = ""
    summary: dict[str, Any] | None = None


Message = Annotated[
    StateMessage | ProgressMessage | SampleMessage | SegmentMessage | ArtifactMessage | ResultMessage,
    Field(discriminator="type"),
]
MESSAGES: TypeAdapter[Message] = TypeAdapter(Message)


class PoolSample(Spec):
    """One group of a cluster's instances in a live sample; ``kv_used_share`` is as of the newest step of each.

    ``on`` counts those that are neither off, nor starting, nor dead; None in samples of earlier versions.
    """

    waiting: int
    running: int
    busy_share: float
    kv_used_share: float
    on: int | None = None


class Sample(Spec):
    """One live sample of a run; rates and percentiles are over the ``window_s`` before ``t_s``, None when empty.

    What a target does not show is None too: a server's steps, and whatever it does not export. ``in_flight`` counts a
    load client's open requests; in process there is no such client.
    """

    t_s: float
    waiting: int | None
    running: int | None
    paused: int | None
    kv_used: int | None
    kv_cached: int | None
    kv_free: int | None
    hit_rate: float | None
    prefill_tokens_per_s: float | None
    decode_tokens_per_s: float
    busy_share: float | None
    step_prefill_tokens: int | None
    step_decode_tokens: int | None
    step_budget: int | None
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    gap_p50_ms: float | None
    gap_p95_ms: float | None
    gap_p99_ms: float | None
    done: int
    preemptions: int | None
    in_flight: int | None = None
    on_the_way: int | None = Field(None, description="Clusters: requests between two instances.")
    moved_bytes_per_s: float | None = Field(None, description="Clusters: KV bytes per second, of what has landed.")
    fallbacks: int | None = Field(None, description="Clusters: handoffs not done as first chosen, so far.")
    instance_changes: int | None = Field(
        None, description="Clusters: instances started, drained, lent or moved between pools, so far."
    )
    window_s: float
    account_checks: int | None = Field(
        None, description="Checks of the account so far: blocks, requests and tokens conserved, each in one place."
    )
    account_broken: str | None = Field(
        None, description="The first check that failed: law, place (the step) and numbers. None: all hold."
    )
    pools: dict[str, PoolSample] = {}
