"""Events of a run that are no requests: what an operator does to the instances while they serve."""

from typing import Annotated, Literal

from pydantic import Field

from scheduler_core.spec.base import Name, Spec


class CacheResetSpec(Spec):
    """The prefix cache of every instance is forgotten, as after a change of weights.

    Without force it succeeds only while no KV block is in use, and the record says how many stood in the way.
    """

    at_s: Annotated[float, Field(ge=0, le=10**9)] = Field(
        description="The moment, in seconds of the run. It takes effect before the next step that is planned."
    )
    force: bool = Field(
        False, description="Preempt everybody who runs first, newest first; they compute all of their tokens again."
    )


class OutageSpec(Spec):
    """An instance of a cluster dies with everything on it, or is drained for maintenance."""

    at_s: Annotated[float, Field(ge=0, le=10**9)] = Field(description="The moment, in seconds of the run.")
    group: Name = Field(description="Group of the target's topology that the instance is in.")
    number: int = Field(0, ge=0, le=4095, description="Which instance of the group, counted from 0.")
    kind: Literal["death", "drain"] = Field(
        "death",
        description="death: all it holds is gone at once, and nobody knows for a while (pools.notice_ms). drain: it "
        "gets nothing new and ends what it has.",
    )
    back_after_s: Annotated[float, Field(gt=0, le=10**9)] | None = Field(
        None,
        description="After how long it is started again, empty; it serves once its cold start is over. Absent: never.",
    )


class EventsSpec(Spec):
    """What happens to the instances during every run, beside the requests."""

    cache_resets: tuple[CacheResetSpec, ...] = Field(
        (), max_length=256, description="When the prefix cache is forgotten."
    )
    outages: tuple[OutageSpec, ...] = Field(
        (), max_length=256, description="Instances of a cluster that die or are drained."
    )
