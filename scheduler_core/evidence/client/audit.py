"""The audit of a run against a server: the same account kept a second time, from the records alone.

A server's steps are not seen, so what is checked is what a client can know: every offered request ends once, nothing
comes before it was sent, times run forward, tokens add up, and the parts of a latency are its sum.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from scheduler_core.evidence.audit.replay import MOST_VIOLATIONS
from scheduler_core.evidence.schema import AuditReport, Figure, Violation
from scheduler_core.evidence.tables.requests import Requests
from scheduler_core.types.client_records import Answered, Observed, Sent, Streamed
from scheduler_core.types.reasons import Outcome
from scheduler_core.types.records import Arrived, Finished, Record, RunFinished, RunStarted, Step
from scheduler_core.types.time import Ns


@dataclass
class _Seen:
    due_ns: Ns
    sent_ns: Ns | None = None
    last_ns: Ns | None = None
    tokens: int = 0
    chunks: int = 0


@dataclass
class ClientAudit:
    """Takes the records of one run; `report` closes it."""

    checks: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    found: int = 0
    _open: dict[int, _Seen] = field(default_factory=dict)
    _ended: Counter[str] = field(default_factory=Counter)
    _ids: set[int] = field(default_factory=set)
    _offered: int | None = None
    _complete: bool = False
    _looks: dict[str, Ns] = field(default_factory=dict)

    def take(self, record: Record) -> None:
        """Replay one record."""
        match record:
            case Streamed():
                for request, at, tokens in record.rows:
                    self._chunk(request, at, tokens)
            case Arrived():
                fresh = record.request not in self._open and record.request not in self._ids
                self._check("offered = outcomes", fresh, record.request, "arrived twice")
                self._check(
                    "R25 ordering", record.seen_ns >= record.at_ns, record.request, "taken up before it was due"
                )
                self._open[record.request] = _Seen(record.at_ns)
            case Sent():
                self._sent(record)
            case Answered():
                self._answered(record)
            case Finished():
                self._finished(record)
            case Observed():
                self._observed(record)
            case RunStarted():
                self._offered = record.offered
            case RunFinished():
                self._complete = record.complete
            case Step():
                self._check("no steps", False, record.id, "a server's steps cannot be seen, yet one was recorded")

    def report(self, requests: Requests, figures: dict[str, Figure]) -> AuditReport:
        """Check the sums over the whole run, the tables and the figures, and give the result."""
        ended = sum(self._ended.values())
        if self._offered is None:
            self._check("offered = outcomes", False, "run", "the records have no start")
        elif self._complete:
            right = ended == self._offered and not self._open
            self._check("offered = outcomes", right, "run", f"{self._offered} offered, {ended} ended")
        else:
            self._check("offered = outcomes", ended <= self._offered, "run", f"{self._offered} offered, {ended} ended")
        self._additivity(requests)
        for name, figure in figures.items():
            typed = (figure.value is None) != (figure.absence is None)
            self._check("R26 typed absence", typed, name, f"value {figure.value}, absence {figure.absence}")
        if self.found > len(self.violations):
            more = self.found - len(self.violations)
            self.violations.append(Violation(rule="more", where="run", message=f"{more} further violations"))
        return AuditReport(passed=not self.found, checks=dict(self.checks), violations=self.violations)

    def _sent(self, record: Sent) -> None:
        seen = self._open.get(record.request)
        self._check("offered = outcomes", seen is not None, record.request, "sent before it was due or after its end")
        if seen is None:
            return
        self._check("R25 ordering", record.at_ns >= seen.due_ns, record.request, "sent before it was due")
        self._check("no negative duration", record.connect_ns >= 0, record.request, "connecting took negative time")
        seen.sent_ns = record.at_ns
        seen.last_ns, seen.tokens, seen.chunks = None, 0, 0

    def _chunk(self, request: int, at_ns: Ns, tokens: int) -> None:
        seen = self._open.get(request)
        if seen is None:
            return self._check("offered = outcomes", False, request, "a chunk came before its start or after its end")
        before = seen.last_ns if seen.last_ns is not None else seen.sent_ns
        forward = before is not None and at_ns >= before
        self._check("R25 ordering", forward, request, f"a chunk at {at_ns} ns follows {before}")
        self._check("tokens counted", tokens > 0, request, f"a chunk of {tokens} tokens was recorded")
        seen.last_ns = at_ns
        seen.tokens += tokens
        seen.chunks += 1
        return None

    def _answered(self, record: Answered) -> None:
        seen = self._open.get(record.request)
        if seen is None or record.counts is None:
            return
        same = len(record.counts) == seen.chunks
        self._check("tokens counted", same, record.request, f"{len(record.counts)} counts for {seen.chunks} chunks")
        seen.tokens = sum(record.counts)

    def _finished(self, record: Finished) -> None:
        seen = self._open.pop(record.request, None)
        self._check("offered = outcomes", seen is not None, record.request, "ended twice or without arriving")
        if seen is None:
            return
        self._ended[record.outcome] += 1
        self._ids.add(record.request)
        last = seen.last_ns if seen.last_ns is not None else seen.due_ns
        self._check(
            "R25 ordering", record.at_ns >= last, record.request, f"ended at {record.at_ns}, last chunk at {last}"
        )
        self._check("emitted = declared", seen.tokens == record.output_tokens, record.request,
                    f"{seen.tokens} tokens came, {record.output_tokens} declared")  # fmt: skip
        if record.outcome == Outcome.FINISHED:
            self._check("emitted = declared", seen.tokens > 0, record.request, "finished without a token")

    def _observed(self, record: Observed) -> None:
        before = self._looks.get(record.source)
        self._check("R25 ordering", before is None or record.at_ns >= before, record.source, "looked back in time")
        self._looks[record.source] = record.at_ns
        for name, value in record.values.items():
            if value < 0:
                self._check("no negative duration", False, record.source, f"{name} is {value:g}")

    def _additivity(self, requests: Requests) -> None:
        """Segments add up to E2E, and so do TTFT and gaps by the stamps kept here."""
        rows, done = requests.rows, requests.finished
        e2e = rows["last_token_ns"] - rows["arrival_ns"]
        self.checks["R4 additivity"] += int(done.sum())
        parts = requests.segment_sum_ns()
        for row in (done & (parts != e2e)).nonzero()[0]:
            self._check("R4 additivity", False, int(rows["request"][row]),
                        f"parts are {int(parts[row])} ns, E2E {int(e2e[row])} ns")  # fmt: skip

    def _check(self, rule: str, holds: bool, where: Any, message: str) -> None:  # noqa: FBT001
        self.checks[rule] += 1
        if not holds:
            self.found += 1
            if len(self.violations) < MOST_VIOLATIONS:
                place = f"request {where}" if isinstance(where, int) else str(where)
                self.violations.append(Violation(rule=rule, where=place, message=message))
