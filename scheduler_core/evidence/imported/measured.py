"""What any load tool measured of one request, in one shape."""

import hashlib
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from statistics import median

from scheduler_core.types.reasons import Outcome

_RIGHT_AFTER = 0.05


@dataclass(frozen=True, slots=True)
class Measured:
    """One request; times in seconds, ``arrival_s`` from the first of the run.

    ``send_delay_s`` is how much later it was really sent, where the tool keeps both.
    ``gaps_s`` are waits between stream chunks where the tool kept them; they are gaps between tokens only when there
    are as many as tokens less one.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    ttft_s: float | None
    e2e_s: float | None
    outcome: Outcome = Outcome.FINISHED
    reason: str = ""
    queue_s: float | None = None
    gaps_s: tuple[float, ...] | None = None
    send_delay_s: float = 0.0

    @property
    def token_gaps_s(self) -> tuple[float, ...] | None:
        """Gaps between tokens; None when not measured, or when chunks carried several tokens."""
        return self.gaps_s if self.gaps_s is not None and len(self.gaps_s) == self.output_tokens - 1 else None


@dataclass(frozen=True)
class MeasuredRun:
    """A file's requests in order of arrival, with what a reader of the figures must know."""

    tool: str
    requests: tuple[Measured, ...]
    notes: tuple[str, ...] = ()
    sources: dict[str, str] = field(default_factory=dict)

    def plan_digest(self) -> str:
        """Digest over the prompt lengths in order: equal for two systems that were asked the same."""
        text = ",".join(str(request.prompt_tokens) for request in self.requests)
        return hashlib.blake2b(f"imported|{text}".encode(), digest_size=16).hexdigest()

    def sent_on_answers(self) -> bool:
        """Whether requests were sent as others ended, by a fixed number of users, and not at times of a schedule.

        With as many users as were ever on their way at once, request i + users is sent right after the i-th end.
        """
        arrivals = sorted(request.arrival_s for request in self.requests)
        took = [request.e2e_s or 0.0 for request in self.requests]
        ends = sorted(request.arrival_s + length for request, length in zip(self.requests, took, strict=True))
        users = max(sent - bisect_right(ends, at_s) for sent, at_s in enumerate(arrivals, start=1))
        waits = [sent - ended for sent, ended in zip(arrivals[users:], ends, strict=False)]
        return 2 * len(waits) >= len(arrivals) and median(waits) <= _RIGHT_AFTER * median(took)


def in_order(
    tool: str, requests: list[Measured], notes: tuple[str, ...] = (), *, by_arrival: bool = True
) -> MeasuredRun:
    """A run that begins at 0, its requests by arrival, or in the file's order where that is the plan's."""
    start = min((request.arrival_s for request in requests), default=0.0)
    shifted = [replace(request, arrival_s=request.arrival_s - start) for request in requests]
    if by_arrival:
        shifted.sort(key=lambda request: request.arrival_s)
    return MeasuredRun(tool, tuple(shifted), notes)


def fill_absent(run: MeasuredRun, reference: MeasuredRun) -> MeasuredRun:
    """``run`` with a failed request in each place that ``reference`` has and it lacks, where prompts tell the places.

    Some tools leave failed requests out of their files. Nothing is filled in when the prompts of ``run`` are no
    subsequence of the reference's.
    """
    rows = iter(run.requests)
    row = next(rows, None)
    filled: list[Measured] = []
    for planned in reference.requests:
        if row is not None and row.prompt_tokens == planned.prompt_tokens:
            filled.append(row)
            row = next(rows, None)
        else:
            filled.append(replace(planned, output_tokens=0, ttft_s=None, e2e_s=None, outcome=Outcome.FAILED,
                                  reason="absent from the file", gaps_s=None, queue_s=None))  # fmt: skip
    absent = len(filled) - len(run.requests)
    if row is not None or not absent:
        return run
    note = f"{absent} of {len(filled)} requests of the plan are absent from one file and count as failed"
    return replace(run, requests=tuple(filled), notes=(*run.notes, note))
