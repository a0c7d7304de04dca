"""How long requests may take before somebody gives them up."""

from typing import NamedTuple

from scheduler_core.types.time import Ns


class Patience(NamedTuple):
    """Limits of a tier, counted from a request's arrival; None is no limit.

    ``queue_ns`` is for its first execution to start, ``total_ns`` for its last token.
    """

    queue_ns: Ns | None = None
    total_ns: Ns | None = None
