"""Launch templates: how an administrator lets a worker start a server. Argument lists, never a line for a shell."""

from typing import Literal, Self

from pydantic import Field, model_validator

from scheduler_core.spec.base import Name, PositiveFloat, Spec

PORT = "{port}"


class LaunchTemplate(Spec):
    """A command that starts a server on loopback; the flags of an arm's policy are added at its end.

    ``{port}`` in an argument becomes a free port. Nothing else is replaced, and no shell is involved.
    """

    server: Literal["vllm", "sglang", "openai"]
    command: tuple[str, ...] = Field(min_length=1, max_length=200, description="Program and arguments.")
    env: dict[str, str] = Field(default_factory=dict, description="Environment variables beside the worker's own.")
    ready_path: str = Field("/health", pattern=r"^/[^\s]*$", description="Answers 200 when the server is ready.")
    ready_s: PositiveFloat = Field(600.0, le=7200, description="Longest time from start to ready.")
    stop_s: PositiveFloat = Field(30.0, le=600, description="Time between asking it to stop and killing it.")
    policy_flags: bool = Field(True, description="Add the flags of the arm's policy.")

    @model_validator(mode="after")
    def _port(self) -> Self:
        if not any(PORT in word for word in self.command):
            raise ValueError(f"command: one argument must contain {PORT}; the worker chooses a free one")
        return self


class LaunchFile(Spec):
    """The launch templates of a worker, by name."""

    templates: dict[Name, LaunchTemplate] = Field(default_factory=dict, max_length=100)
