"""What a mock server does, as data: given to it as JSON when it starts."""

from typing import Literal, Self

from pydantic import Field, model_validator

from scheduler_core.spec.base import PositiveInt, Spec
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.target import Profile

FaultName = Literal[
    "error_in_stream",  # two tokens, then an error object and [DONE], all inside a 200
    "no_finish",  # two tokens, then the stream ends in order, but with no finish reason and no [DONE]
    "no_done",  # every token and a finish reason, no [DONE]
    "reset",  # two tokens, then the connection breaks
    "empty_stream",  # 200, a stream, no token, [DONE]
    "plain_json",  # 200 with one whole JSON answer, though a stream was asked for
    "refused",  # 429
    "failed",  # 500
    "silent",  # no answer at all
    "stall",  # one pause of two seconds between two tokens
]


class Scripted(Spec):
    """Every answer on its own clock: the first token after ``ttft_ms``, the others ``gap_ms`` apart."""

    ttft_ms: float = Field(50.0, ge=0)
    gap_ms: float = Field(10.0, ge=0)
    tokens_per_chunk: PositiveInt = 1


class Scheduled(Spec):
    """Answers share one modelled instance, in real time: the product's own planner with a cost model as its device."""

    policy: PolicySpec
    profile: Profile
    kv_blocks: PositiveInt = 512
    noise_seed: int | None = None


class Separated(Spec):
    """Prefill and decode in pools of their own behind a router, as SGLang separates them.

    A prompt is computed by one pool in the script's ``ttft_ms``, its state is copied, and the other pool gives every
    token. Each pool has its own metrics page, ``/prefill/metrics`` and ``/decode/metrics``.
    """

    transfer_ms: float = Field(20.0, ge=0, description="What copying a prompt's state takes.")
    token_bytes: PositiveInt = Field(2**16, description="Bytes of state for each token of a prompt.")


class Behaviour(Spec):
    """A mock server.

    ``faults`` maps the index in a request's x-request-id to what goes wrong with it. ``publish_delay_ms`` is how
    late a sample of a histogram or counter appears on the metrics page.
    """

    dialect: Literal["vllm", "sglang", "openai"] = "vllm"
    model: str = "mock"
    api_key: str = ""
    only_uuids: bool = Field(
        False, description="As llama-cpp-python's: an x-request-id that is no UUID is answered with an empty 400."
    )
    dev_mode: bool = Field(False, description="As vLLM: whether it tells its whole configuration.")
    scripted: Scripted | None = None
    scheduled: Scheduled | None = None
    separated: Separated | None = None
    faults: dict[int, FaultName] = {}
    keep_alive_comments: bool = Field(False, description="A comment line before every chunk.")
    empty_first_delta: bool = Field(False, description="Completions too begin with a chunk that has no token.")
    usage: Literal["full", "last", "none"] = Field(
        "full", description="Token counts: with every chunk when asked for, only at the end, or never."
    )
    publish_delay_ms: float = Field(0.0, ge=0)
    profiler: bool = Field(False, description="Whether it was started with a profiler.")
    metrics: bool = Field(True, description="Whether there is a metrics page.")
    hidden_metrics: tuple[str, ...] = Field((), description="Names left off the metrics page.")

    @model_validator(mode="after")
    def _one_engine(self) -> Self:
        if self.scripted is not None and self.scheduled is not None:
            raise ValueError("give scripted or scheduled, not both")
        if self.separated is not None and (self.scheduled is not None or self.dialect != "sglang"):
            raise ValueError("separated: is for a scripted mock that speaks as sglang")
        return self
