"""Refusing a request on arrival that is predicted to miss what its tier was promised (MK-03)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scheduler_core.cluster.load import Load
from scheduler_core.cluster.router import Estimate
from scheduler_core.request.spec import RequestSpec
from scheduler_core.sched.plan import Ended
from scheduler_core.types.patience import Promise
from scheduler_core.types.reasons import Outcome, Reject
from scheduler_core.types.time import Ns

Pace = Callable[[int, int, int], Ns]
"""Predicted time of a decode step at an instance (by index) with so many requests and KV tokens."""


class Seen(NamedTuple):
    """What a request would find: ``loads`` by instance, and who of them it may be computed and decoded by now.

    Without ``decoders`` prompts and answers are not apart.
    """

    loads: Sequence[Load]
    entries: Sequence[int]
    decoders: Sequence[int]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Predicts first token and pace of decoding with a request let in.

    The first token: what waits to be computed where it would go, then its own prompt. The pace: that of the least
    loaded of ``decoders`` when this prompt is computed, so with its share of all who are ahead of it, and not the pace
    of now: else all would be let in while decoding is idle and refused once they arrive there.
    """

    promises: Mapping[str, Promise]
    estimate: Estimate
    pace: Pace | None

    def of(self, request: RequestSpec, instance: int, seen: Seen) -> Ended | None:
        """Why ``request`` is refused at ``instance``, None if it is not. The numbers compared are in ns."""
        promise = self.promises.get(request.tier)
        if promise is None:
            return None
        if promise.ttft_ns is not None:
            allowed = promise.ttft_ns + round(promise.ttft_token_ns * request.prompt_tokens)
            first = self.estimate(instance, seen.loads[instance].prefill_tokens + request.prompt_tokens)
            if first > allowed:
                return _refused(request, Reject.PREDICTED_TTFT, first, allowed)
        if promise.tpot_ns is not None and self.pace is not None and seen.decoders:
            pace = _pace(self.pace, request, seen)
            if pace > promise.tpot_ns:
                return _refused(request, Reject.PREDICTED_TPOT, pace, promise.tpot_ns)
        return None


def _pace(pace: Pace, request: RequestSpec, seen: Seen) -> Ns:
    loads, share = seen.loads, len(seen.decoders)
    coming = sum(loads[index].open for index in seen.entries) // share + 1
    tokens = sum(loads[index].prefill_tokens for index in seen.entries) // share + request.prompt_tokens
    least = min(seen.decoders, key=lambda index: (loads[index].kv_tokens, index))
    return pace(least, loads[least].open + coming, loads[least].kv_tokens + tokens)


def _refused(request: RequestSpec, reason: Reject, need: Ns, have: Ns) -> Ended:
    return Ended(request.id, Outcome.REJECTED, "route", reason.value, 0, need, have)
