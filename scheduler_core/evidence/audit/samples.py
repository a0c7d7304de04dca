"""The part of the audit that follows samples of one prompt which share its blocks."""

from collections import Counter

from scheduler_core.evidence.audit.checks import AuditedRequest
from scheduler_core.evidence.audit.moves import Check
from scheduler_core.types.records import Admitted, Paused, Preempted, Step, Steps

RULE = "samples share"


class SamplesAudit:
    """Replays what samples share; ``check`` is that of the audit, ``block_size`` that of the run."""

    def __init__(self, check: Check) -> None:
        self.block_size = 1
        self._check = check
        self._due: Counter[tuple[int, int]] = Counter()  # copies by instance and step
        self._parting: dict[int, tuple[int, int]] = {}  # requests that came in by a copy, and in which step
        self._reached: dict[int, int] = {}  # how far first samples had come that have ended

    def admitted(self, record: Admitted, request: AuditedRequest, first: AuditedRequest | None) -> None:
        """``request`` came in with the prompt of the ``first`` sample, which is open unless it is None."""
        group = -1 if request.group is None else request.group
        reached = self._reached.get(group, 0) if first is None else first.next_start or 0
        alike = first is None or (first.prompt, first.instance) == (request.prompt, request.instance)
        whole = record.shared_tokens == record.hit_tokens <= min(reached, request.prompt)
        self._check(RULE, group != record.request and alike and whole, f"admitted request {record.request}",
                    "shares {} of {} tokens found, sample {} had computed {}", record.shared_tokens, record.hit_tokens,
                    group, reached)  # fmt: skip
        if record.shared_tokens % self.block_size:
            place = self._parting[record.request] = request.instance, record.step
            self._due[place] += 1

    def stopped(self, record: Preempted | Paused, request: AuditedRequest) -> None:
        """In the very step in which it came in, a request that stops needs no copy any more."""
        place = self._parting.get(record.request)
        if place == (request.instance, record.step):
            self._due[place] -= 1
            del self._parting[record.request]

    def ended(self, number: int, request: AuditedRequest) -> None:
        """Request ``number`` is over; a step that was planned before may tell later that it shared its blocks."""
        self._parting.pop(number, None)
        if request.group == number:
            self._reached[number] = request.next_start or 0

    def step(self, step: Step | Steps, where: str) -> None:
        """One block is copied for each request that parts from blocks that end within one."""
        due = self._due.pop((step.instance, step.id), 0)
        if due or step.copied_on_write:
            self._check(RULE, step.copied_on_write == due, where, "{} blocks copied on write, due are {}",
                        step.copied_on_write, due)  # fmt: skip
