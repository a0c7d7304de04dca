"""What a tier was promised, and how long its requests may take before they are given up."""

from typing import NamedTuple

from scheduler_core.types.time import Ns


class Patience(NamedTuple):
    """Limits of a tier, counted from a request's arrival; None is no limit.

    ``queue_ns`` is for its first execution to start, ``total_ns`` for its last token.
    """

    queue_ns: Ns | None = None
    total_ns: Ns | None = None


class Promise(NamedTuple):
    """Service objectives of a tier; None where there is none.

    The first token within ``ttft_ns`` + ``ttft_token_ns`` per uncached prompt token, each further one within
    ``tpot_ns`` on average, the last within ``e2e_ns``.
    """

    ttft_ns: Ns | None = None
    ttft_token_ns: float = 0.0
    tpot_ns: Ns | None = None
    e2e_ns: Ns | None = None
