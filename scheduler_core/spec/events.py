"""Events of a run that are no requests: what an operator does to the instances while they serve."""

from typing import Annotated

from pydantic import Field

from scheduler_core.spec.base import Spec


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


class EventsSpec(Spec):
    """What happens to the instances during every run, beside the requests."""

    cache_resets: tuple[CacheResetSpec, ...] = Field(
        (), max_length=256, description="When the prefix cache is forgotten."
    )
