"""A plan in which each prompt is answered several times at once: parallel samples, ``n`` of the OpenAI API."""

from collections.abc import Sequence
from dataclasses import replace

from scheduler_core.types.arrival import PlannedRequest


def with_samples(requests: Sequence[PlannedRequest], samples: int) -> tuple[PlannedRequest, ...]:
    """``requests``, indices 0 up, each ``samples`` times in a row, numbered anew.

    The samples of a prompt come together. What waits for a request waits for all samples of it: only then has the
    call that asked for them been answered.
    """
    return tuple(
        replace(
            request,
            index=request.index * samples + number,
            after=tuple(before * samples + sample for before in request.after for sample in range(samples)),
            group=request.index * samples,
        )
        for request in requests
        for number in range(samples)
    )
