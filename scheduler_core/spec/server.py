"""The server target: a deployment that speaks OpenAI's API, and how the load client behaves towards it.

A deployment is one traffic address and a list of metric sources. One server, replicas behind a router, and separated
prefill and decode pools are all said, and compared, this way.
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from scheduler_core.spec.addresses import HttpUrl
from scheduler_core.spec.base import Name, PositiveFloat, PositiveInt, Spec
from scheduler_core.spec.launch import LaunchTemplate
from scheduler_core.spec.sampling import Sampling

ServerKind = Literal["auto", "vllm", "sglang", "openai"]


class MetricSource(Spec):
    """Where one instance's metrics are read: its own page, or a query to a Prometheus server."""

    url: HttpUrl = Field(description="The instance's address, whose /metrics is read; with query, Prometheus's.")
    query: str = Field(
        "", max_length=500, description='Labels that pick the instance at a Prometheus server, such as {job="vllm"}.'
    )
    role: Literal["unified", "prefill", "decode", "router", "devices"] = Field(
        "unified",
        description="What the instance does with a request; devices: no instance, but a monitor of its devices, such "
        "as NVIDIA's DCGM exporter.",
    )
    pool: Name = Field("default", description="Instances of one pool are added up.")
    devices: PositiveInt = Field(1, le=65_536, description="Devices the instance runs on.")
    price_per_hour: PositiveFloat | None = Field(None, description="What the instance costs, in your currency.")

    @model_validator(mode="after")
    def _labels(self) -> Self:
        if self.query and not (self.query.startswith("{") and self.query.endswith("}")):
            raise ValueError('query: write labels in braces, such as {job="vllm", pod="a"}')
        return self


class Deployment(Spec):
    """Where requests go. Exactly one of url, endpoint and launch."""

    url: HttpUrl | None = Field(None, description="Address that requests are sent to, without /v1.")
    endpoint: Name | None = Field(None, description="A registered endpoint: its address, secret and TLS rules.")
    launch: Name | None = Field(
        None, description="A launch template of the worker: it starts the server with flags made from the arm's policy."
    )
    server: ServerKind = Field("auto", description="Which server it is; auto asks it.")
    sources: tuple[MetricSource, ...] = Field(
        (), max_length=256, description="Metric sources; none: the traffic address's own page where it has one."
    )

    @property
    def given(self) -> list[str]:
        """Which ways to the server are written."""
        return [name for name in ("url", "endpoint", "launch") if getattr(self, name) is not None]


class Retry(Spec):
    """What the client does when it is turned away or the connection breaks before the first token."""

    tries: int = Field(0, ge=0, le=10, description="Further tries; 0: every request is sent once.")
    wait_ms: PositiveFloat = Field(500.0, description="Wait before the first further try, unless the server names one.")
    factor: float = Field(2.0, ge=1, le=10, description="Each further wait is this much longer.")


class LoadClient(Spec):
    """How the load client behaves, and when its own lateness voids a run."""

    processes: PositiveInt | None = Field(
        None,
        le=64,
        description="Processes that send; absent: as many as the plan needs by the client's measured limit.",
    )
    connections: PositiveInt = Field(4096, le=100_000, description="Most connections at once.")
    timeout_s: PositiveFloat = Field(600.0, le=86_400, description="A request without its end after this is timed out.")
    retry: Retry = Retry()
    late_ms: PositiveFloat = Field(
        5.0, description="A run whose 99th percentile of send delay is above this is void: the client was late."
    )
    self_test_s: float = Field(
        0.5, ge=0, le=60, description="Seconds in which the client's own limit is measured before a run; 0: not."
    )


class ServerTarget(Deployment):
    """An OpenAI-compatible deployment; Headway is the load client and observer."""

    arms: dict[Name, Deployment] = Field(
        default_factory=dict, max_length=16, description="Deployments of arms that have their own, by arm."
    )
    model: str | None = Field(None, max_length=200, description="Model to ask for; absent: the first one listed.")
    api: Literal["completions", "chat"] = "completions"
    prompts: Literal["token_ids", "text"] = Field(
        "token_ids", description="Prompts as exact token ids, or as text (chat: always text)."
    )
    tokenizer: str | None = Field(None, description="Folder of the model's tokenizer, so that text has exact lengths.")
    vocab_size: int = Field(4096, ge=64, le=10_000_000, description="Token ids of prompts are drawn below this.")
    sampling: Sampling | None = Field(None, description="How tokens are chosen; absent: the most probable one.")
    ignore_eos: bool = Field(True, description="Ask for exactly the planned output length, where the server can.")
    feed_back: bool = Field(True, description="Later turns of a session contain the real answers before them.")
    reset_cache: bool = Field(True, description="Have the prefix cache emptied before each run, where the server can.")
    warmup_requests: int = Field(4, ge=0, le=10_000, description="Requests sent and forgotten before each run.")
    scrape_ms: float = Field(250.0, ge=50, le=60_000, description="Time between two looks at a metric source.")
    device_monitor: Literal["nvml"] | None = Field(
        None, description="nvml: watch the NVIDIA devices of the worker's own machine, where the server runs there too."
    )
    profile_s: float | None = Field(
        None,
        gt=0,
        le=60,
        description="After each run, play the plan's first seconds again, unmeasured, under the server's own profiler.",
    )
    client: LoadClient = LoadClient()

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if len(self.given) > 1 or (not self.given and not self.arms):
            got = " and ".join(self.given) or "nothing"
            raise ValueError(f"url: give exactly one of url, endpoint and launch, or arms with theirs; got {got}")
        for name, own in self.arms.items():
            if len(own.given) != 1:
                raise ValueError(f"arms: {name} needs exactly one of url, endpoint and launch")
        if self.tokenizer is not None and self.prompts == "token_ids" and self.api == "completions":
            raise ValueError("tokenizer: is for prompts: text; token ids need none")
        return self

    def places(self) -> list[tuple[str, Deployment]]:
        """Every deployment with its place in an experiment."""
        own = [(f"target.server.arms.{name}.endpoint", item) for name, item in self.arms.items()]
        return [("target.server.endpoint", self), *own]

    def deployment(self, arm: str) -> Deployment:
        """Where ``arm`` is played."""
        return self.arms.get(arm, self)


class Access(Spec):
    """A deployment with everything that is needed to reach it. Never stored: it may hold a secret.

    ``allowed`` and ``closed`` are those of `scheduler_core.spec.addresses.Reach`.
    """

    url: HttpUrl | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    verify_tls: bool = True
    ca_file: str | None = None
    launch: LaunchTemplate | None = None
    allowed: tuple[str, ...] = ()
    closed: tuple[tuple[str, int], ...] = ()
