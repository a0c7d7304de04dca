"""The audit: replays a run's records with state of its own and checks the laws that every run must keep.

It shares no arithmetic with the tables, so a fault in either shows. A run that fails it cannot enter a verdict.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from scheduler_core.evidence.audit.checks import AuditedInstance, AuditedRequest, pool_of
from scheduler_core.evidence.audit.leases import LeasesAudit
from scheduler_core.evidence.audit.moves import MOVES, Move, MovesAudit
from scheduler_core.evidence.audit.pauses import PAUSES, PausesAudit
from scheduler_core.evidence.audit.places import PlacesAudit
from scheduler_core.evidence.audit.samples import SamplesAudit
from scheduler_core.evidence.audit.sums import SumFault, handoffs_add_up, segments_add_up
from scheduler_core.evidence.columns import Marks
from scheduler_core.evidence.fold.drafts import draft_faults
from scheduler_core.evidence.fold.spread import spread_faults
from scheduler_core.evidence.records.expand import Lanes, lanes_of
from scheduler_core.evidence.schema import AuditReport, Figure, Violation
from scheduler_core.evidence.tables.requests import Requests
from scheduler_core.types.intervals import COMPUTE, IntervalClass
from scheduler_core.types.plan import Phase
from scheduler_core.types.reasons import Outcome
from scheduler_core.types.records import (
    Admitted,
    Arrived,
    CacheReset,
    Finished,
    Loaded,
    Paused,
    Preempted,
    Record,
    Resumed,
    RunFinished,
    RunStarted,
    Step,
    Steps,
    Swapped,
)
from scheduler_core.types.time import Ns

MOST_VIOLATIONS = 200
_PREFILL, _DECODE, _RECOMPUTE = Phase.PREFILL.value, Phase.DECODE.value, Phase.RECOMPUTE.value
_PER_GRANT = ("R25 ordering", "tokens contiguous", "sampled at the end", "no negative duration")

Row = tuple[int, int, int, int, str, int, int]


@dataclass
class Audit:
    """Takes the records of one run; `report` closes it."""

    checks: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    found: int = 0
    _open: dict[int, AuditedRequest] = field(default_factory=dict)
    _instances: defaultdict[int, AuditedInstance] = field(default_factory=lambda: defaultdict(AuditedInstance))
    _ended: Counter[str] = field(default_factory=Counter)
    _ids_ended: Marks = field(default_factory=Marks)
    _started: RunStarted | None = None
    _finished: RunFinished | None = None
    _last_available: Ns = 0
    _away: dict[int, Ns] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._moves = MovesAudit(self._open, self._instances, self._check, self._token)
        self._leases = LeasesAudit(self._check)
        self._places = PlacesAudit(self._check)
        self._pauses = PausesAudit(self._instances, self._check)
        self._samples = SamplesAudit(self._check)
        self._takers: dict[type[Any], Callable[[Any], None]] = {
            RunStarted: self._run_started,
            Loaded: self._loaded,
            Arrived: self._arrived,
            Admitted: self._admitted,
            Step: self._step,
            Steps: self._stretch,
            Preempted: self._preempted,
            **dict.fromkeys(PAUSES, self._stopped),
            CacheReset: self._reset,
            Finished: self._end,
            RunFinished: self._run_finished,
            **self._leases.takers(),
            **dict.fromkeys(MOVES, self._moved),
        }

    @property
    def first_violation(self) -> str | None:
        """The first check that failed, as one line; None while all hold."""
        if not self.violations:
            return None
        first = self.violations[0]
        return f"{first.rule}, {first.where}: {first.message}"

    def take(self, record: Record) -> None:
        """Replay one record."""
        taker = self._takers.get(type(record))
        if taker is not None:
            taker(record)
        self._places.take(record)

    def report(self, requests: Requests, figures: dict[str, Figure]) -> AuditReport:
        """Check the sums over the whole run, the tables and the figures, and give the result."""
        self._conservation()
        modelled = self._started is not None and self._started.source == "modelled"
        self.checks["R4 additivity"] += 2 * int(requests.finished.sum())
        self._faults(segments_add_up(requests, modelled=modelled))
        self.checks["handoff adds up"] += len(self._away)
        self._faults(handoffs_add_up(requests, self._away))
        return self._close(figures)

    def tables_report(self, requests: Requests, figures: dict[str, Figure]) -> AuditReport:
        """The result where there are no records, only a table: durations and typed absences can be checked."""
        rows, done = requests.rows, requests.finished
        for row in done.nonzero()[0]:
            first = int(rows["first_token_ns"][row]) - int(rows["arrival_ns"][row])
            rest = int(rows["last_token_ns"][row]) - int(rows["first_token_ns"][row])
            self._check("no negative duration", first >= 0 and rest >= 0, f"request {rows['request'][row]}",
                        "TTFT {} ns, decode {} ns", first, rest)  # fmt: skip
        return self._close(figures)

    def _close(self, figures: dict[str, Figure]) -> AuditReport:
        for name, figure in figures.items():
            typed = (figure.value is None) != (figure.absence is None)
            self._check("R26 typed absence", typed, name, "value {}, absence {}", figure.value, figure.absence)
        if self.found > len(self.violations):
            more = self.found - len(self.violations)
            self.violations.append(Violation(rule="more", where="run", message=f"{more} further violations"))
        return AuditReport(passed=not self.found, checks=dict(self.checks), violations=self.violations)

    def _check(self, rule: str, holds: bool, where: str, message: str, *numbers: Any) -> None:  # noqa: FBT001
        self.checks[rule] += 1
        if not holds:
            self._fault(rule, where, message, *numbers)

    def _fault(self, rule: str, where: str, message: str, *numbers: Any) -> None:
        self.found += 1
        if len(self.violations) < MOST_VIOLATIONS:
            self.violations.append(Violation(rule=rule, where=where, message=message.format(*numbers)))

    def _faults(self, found: Iterable[SumFault]) -> None:
        for fault in found:
            self._fault(*fault)

    def _run_started(self, record: RunStarted) -> None:
        self._started = record
        self._samples.block_size = record.block_size
        self._moves.known = len(record.instances)
        self._leases.started(record)
        self._places.started(record)

    def _run_finished(self, record: RunFinished) -> None:
        self._finished = record
        self._places.close()

    def _loaded(self, record: Loaded) -> None:
        took_ns = record.end_ns - record.start_ns
        self._check("no negative duration", took_ns >= 0, "loaded", "took {} ns", took_ns)

    def _moved(self, record: Move) -> None:
        self._state(record.request)
        self._moves.take(record)

    def _stopped(self, record: Paused | Resumed | Swapped) -> None:
        request = self._state(record.request)
        self._pauses.take(record, request)
        if request is not None and isinstance(record, Paused):
            self._samples.stopped(record, request)

    def _arrived(self, record: Arrived) -> None:
        where = f"arrived request {record.request}"
        fresh = record.request not in self._open and record.request not in self._ids_ended
        self._check("offered = outcomes", fresh, where, "arrived twice")
        self._check("R25 ordering", record.seen_ns >= record.at_ns, where, "seen at {} ns, due at {} ns",
                    record.seen_ns, record.at_ns)  # fmt: skip
        group = record.group
        self._open[record.request] = AuditedRequest(record.at_ns, record.prompt_tokens, record.output_limit, group)

    def _admitted(self, record: Admitted) -> None:
        request = self._state(record.request)
        where = f"admitted request {record.request}"
        self._check("offered = outcomes", request is not None, where, "admitted before it arrived or after it ended")
        if request is None:
            return
        self._check("resident once", not request.resident and not request.held, where, "admitted while {}",
                    "held" if request.held else "resident")  # fmt: skip
        if request.landed is not None:
            self._check("tokens contiguous", (record.epoch, record.hit_tokens) == request.landed, where,
                        "epoch {} starts at {} tokens, landed were {}", record.epoch, record.hit_tokens,
                        request.landed)  # fmt: skip
        else:
            self._check("R25 ordering", record.epoch > request.epoch, where, "epoch {} after epoch {}",
                        record.epoch, request.epoch)  # fmt: skip
        again = request.preempted > 0 or request.recomputes
        self._check("R8 recompute once", not record.resumed or again, where, "resumed, but nothing was lost")
        request.resident, request.epoch, request.next_start = True, record.epoch, record.hit_tokens
        request.landed = None
        if request.first_hit is None:
            request.first_hit = record.hit_tokens
        if record.shared_tokens:
            # Not settled: if it decodes along it goes on to, and had its whole prompt when it began to.
            self._samples.admitted(record, request, self._open.get(-1 if request.group is None else request.group))
        self._instances[request.instance].resident.add(record.request)

    def _preempted(self, record: Preempted) -> None:
        request = self._state(record.request)
        resident = request is not None and (request.resident or request.paused is not None)
        self._check("resident once", resident, f"preempted request {record.request}", "was not resident")
        if request is not None:
            self._pauses.unpause(request)
            self._samples.stopped(record, request)
            request.resident, request.next_start = False, None
            request.preempted += 1
            self._instances[request.instance].leave(record.request)

    def _reset(self, record: CacheReset) -> None:
        instance = self._instances[record.instance]
        unused = not instance.resident and not instance.swapped_blocks and not record.in_use
        self._check("reset when unused", unused or not record.done, f"cache reset at {record.at_ns} ns",
                    "{} run, {} blocks swapped out, {} in use", len(instance.resident), instance.swapped_blocks,
                    record.in_use)  # fmt: skip
        instance.empty = record.done

    def _state(self, number: int) -> AuditedRequest | None:
        """An open request with its numbers up to date."""
        state = self._open.get(number)
        if state is not None and state.along_since is not None:
            self._instances[state.instance].settle(state)
        return state

    def _step(self, step: Step) -> None:
        where = _where(step.id, step.instance)
        self._step_times(step.instance, (step.id, step.planned_ns, step.available_ns), step.lanes, where)
        self._blocks(step, (step.kv_used, step.kv_cached, step.kv_free), where)
        self._budget(step, sum(grant[3] for grant in step.grants), where)
        self._residents(step.instance, step.planned_ns, _served(step), where)
        if step.drafts:
            faults = draft_faults(step)
            self._check("drafts add up", not faults, where, "{}", "; ".join(faults))
        drafts = {request: (drafted, accepted) for request, drafted, accepted in step.drafts}
        self._grants(step.grants, (step.planned_ns, step.available_ns), where, drafts)

    def _stretch(self, steps: Steps) -> None:
        """Replay steps of one make-up; who decodes along is looked at when he begins to, and when he stops."""
        instance = self._instances[steps.instance]
        for number in steps.left:
            self._state(number)
            instance.along.discard(number)
        instance.gone.difference_update(steps.left)
        instance.along.update(row[0] for row in steps.joined)
        instance.gone.update(row[0] for row in steps.joined if row[0] not in instance.resident)
        first = [(number, epoch, start, 1, _DECODE, 1, 0) for number, epoch, start in steps.joined]
        others = _served(steps)
        for place, (planned, available, lanes) in enumerate(lanes_of(steps)):
            if place == 1 and self._alike(steps, instance):
                break
            where = _where(steps.id + place, steps.instance)
            self._step_times(steps.instance, (steps.id + place, planned, available), lanes, where)
            self._blocks(steps, (steps.kv_used[place], steps.kv_cached[place], steps.kv_free[place]), where)
            self._budget(steps, sum(grant[3] for grant in steps.grants) + len(instance.along), where)
            self._residents(steps.instance, planned, others, where)
            self._grants([*steps.grants, *first] if first else steps.grants, (planned, available), where, {})
            for rule in _PER_GRANT:
                self.checks[rule] += len(instance.along) - len(first)
            instance.steps += 1
            for row in first:
                state = self._open.get(row[0])
                if state is not None:
                    state.along_since = instance.steps
            first = []

    def _alike(self, steps: Steps, instance: AuditedInstance) -> bool:
        """Replay what follows the first of ``steps`` together; nothing of it, and false, where a check may fail.

        Those who decode along are then alone, so that only times and blocks change from one step to the next.
        """
        ends, lanes, along = steps.available_ns, steps.lanes, len(instance.along)
        if steps.grants or steps.stalled or steps.copied_on_write or instance.gone or instance.apart(ends[-2]):
            return False
        fixed = [end - start for kind, _, start, end in lanes if kind != COMPUTE]
        usual = len(fixed) + 1 == len(lanes) and all(lane[0] != IntervalClass.HOST_GAP for lane in lanes)
        quickest = min([later - earlier for earlier, later in pairwise(ends)])
        if not usual or min(fixed, default=0) < 0 or quickest < sum(fixed):
            return False
        if along > (steps.budget or along) or instance.swapped_blocks > steps.host_used:
            return False
        pool = None if self._started is None else pool_of(self._started, steps.instance)
        blocks = zip(steps.kv_used, steps.kv_cached, steps.kv_free, strict=True)
        if pool is not None and any(used + cached + free != pool for used, cached, free in blocks):
            return False
        more, checks = len(ends) - 1, self.checks
        checks["R25 ordering"] += more * (2 + len(lanes) + along)
        checks["no negative duration"] += more * (1 + len(lanes) + along)
        checks["tokens contiguous"] += more * along
        checks["sampled at the end"] += more * along
        checks["blocks conserved"] += more * (1 if pool is None else 2)
        checks["resident once"] += more
        if steps.budget:
            checks["budget"] += more
        instance.steps += more
        instance.last_step, instance.last_available = steps.id + more, ends[-1]
        self._last_available = ends[-1]
        return True

    def _blocks(self, step: Step | Steps, blocks: tuple[int, int, int], where: str) -> None:
        if self._started is not None:
            pool = pool_of(self._started, step.instance)
            self._check("blocks conserved", sum(blocks) == pool, where, "{} + {} + {} is not {}", *blocks, pool)
        instance = self._instances[step.instance]
        if instance.empty:
            self._check("reset when unused", not blocks[1], where, "{} cached blocks", blocks[1])
            instance.empty = False
        swapped = instance.swapped_blocks
        self._check("blocks conserved", swapped <= step.host_used, where, "{} blocks swapped out, {} in the host pool",
                    swapped, step.host_used)  # fmt: skip
        self._samples.step(step, where)
        if isinstance(step, Step) and step.spread is not None:
            faults = spread_faults(step)
            self._check("devices add up", not faults, where, "{}", "; ".join(faults))

    def _budget(self, step: Step | Steps, tokens: int, where: str) -> None:
        if step.budget:
            self._check("budget", tokens <= step.budget, where, "{} tokens over {}", tokens, step.budget)

    def _grants(
        self, grants: list[Row], span: tuple[Ns, Ns], where: str, drafts: Mapping[int, tuple[int, int]]
    ) -> None:
        """``span`` is when the step was planned and available, ``drafts`` are (drafted, accepted) tokens by request."""
        planned_ns, available_ns = span
        for rule in _PER_GRANT:
            self.checks[rule] += len(grants)
        for request, epoch, start, length, phase, sampled, _hit in grants:
            state = self._state(request)
            if state is None:
                continue
            if epoch != state.epoch or planned_ns < state.arrived_ns:
                self._fault("R25 ordering", f"{where} request {request}", "epoch {} planned at {} ns, admitted as {}, "
                            "arrived at {} ns", epoch, planned_ns, state.epoch, state.arrived_ns)  # fmt: skip
            drafted, accepted = drafts.get(request, (0, 0))
            self._grant((where, request), state, start, length - drafted, sampled)
            if phase == _PREFILL:
                state.prefilled += length
            elif phase == _RECOMPUTE:
                self._check("R8 recompute once", state.preempted > 0 or state.recomputes, f"{where} request {request}",
                            "recompute, but nothing was lost")  # fmt: skip
            if drafted:
                due = state.emitted + sampled + drafted
                self._check("drafts add up", due <= state.limit, f"{where} request {request}",
                            "{} drafts after {} of at most {} tokens", drafted, state.emitted, state.limit)  # fmt: skip
            for _ in range(sampled + accepted):
                self._token((where, request), state, available_ns)
            if accepted and state.next_start is not None:
                state.next_start += accepted

    def _residents(self, number: int, planned_ns: Ns, others: list[int], where: str) -> None:
        """Each resident is one who decodes along or one of ``others``, which are granted or stalled."""
        instance = self._instances[number]
        apart = instance.apart(planned_ns)
        # Planned with those that ended while the step ran or the one before.
        seen = Counter([request for request in others if request not in instance.ended_at])
        once = max(seen.values(), default=1) == 1 and seen.keys() == apart and not instance.gone
        if once:
            self.checks["resident once"] += 1
        else:
            self._not_once(seen + Counter(instance.along), instance.resident, where)

    def _not_once(self, seen: Counter[int], residents: set[int], where: str) -> None:
        for request in sorted(residents | seen.keys()):
            count, resident = seen[request], request in residents
            self._check("resident once", count == int(resident), f"{where} request {request}",
                        "{}resident, granted or stalled {} times", "" if resident else "not ", count)  # fmt: skip

    def _step_times(self, number: int, step: tuple[int, Ns, Ns], lanes: Lanes, where: str) -> None:
        """``step`` is its number, when it was planned and when it was available."""
        instance, (step_id, planned, available) = self._instances[number], step
        follows = instance.last_step is None or step_id > instance.last_step
        self._check("R25 ordering", follows, where, "follows step {}", instance.last_step)
        self._check("R25 ordering", available >= self._last_available, where, "available at {} ns, the step "
                    "before at {} ns", available, self._last_available)  # fmt: skip
        self._check("no negative duration", available >= planned, where, "took {} ns", available - planned)
        for kind, _resource, start, end in lanes:
            self._check("no negative duration", end >= start, where, "lane {} took {} ns", kind, end - start)
            gap = kind == IntervalClass.HOST_GAP  # lies between the step before and this one's planning
            inside = (
                instance.last_available <= start and end <= planned if gap else planned <= start and end <= available
            )
            self._check("R25 ordering", inside, where, "lane {} [{}, {}) is outside the step", kind, start, end)
        instance.last_step, instance.last_available = step_id, available
        self._last_available = available

    def _grant(self, at: tuple[str, int], state: AuditedRequest, start: int, length: int, sampled: int) -> None:
        if length <= 0 or start != state.next_start:
            self._fault("tokens contiguous", _at(at), "{} tokens from {}, due from {}", length, start, state.next_start)
        end, known = start + length, state.prompt + state.emitted
        ends = end == known
        if end > known or (sampled and not ends) or state.token_lost:
            self._fault("sampled at the end", _at(at), "computed up to {} of {} known tokens, sampled {}", end, known,
                        sampled)  # fmt: skip
        state.token_lost = ends and not sampled
        state.next_start = end

    def _token(self, at: tuple[str, int], state: AuditedRequest, at_ns: Ns) -> None:
        state.emitted += 1
        before = state.last_ns
        if before is None:
            state.first_ns = at_ns
            if at_ns < state.arrived_ns:
                self._fault("no negative duration", _at(at), "TTFT is {} ns", at_ns - state.arrived_ns)
        else:
            state.gaps_ns += at_ns - before
            if at_ns < before:
                self._fault("no negative duration", _at(at), "gap of {} ns", at_ns - before)
        state.last_ns = at_ns

    def _end(self, record: Finished) -> None:
        where = f"finished request {record.request}"
        state = self._state(record.request)
        if state is not None:
            del self._open[record.request]
            self._pauses.unpause(state)
            self._samples.ended(record.request, state)
        self._check("offered = outcomes", state is not None, where, "ended twice or without arriving")
        if state is None:
            return
        instance = self._instances[state.instance]
        if record.request in instance.resident:
            instance.leave(record.request)
            instance.ended_at[record.request] = record.at_ns
        self._ended[record.outcome] += 1
        self._ids_ended.add(record.request)
        self._check("R25 ordering", record.at_ns >= (state.last_ns or state.arrived_ns), where,
                    "ended at {} ns, last token at {}", record.at_ns, state.last_ns)  # fmt: skip
        declared = record.output_tokens if record.tokens is None else len(record.tokens)
        agree = state.emitted == record.output_tokens == declared and state.emitted <= state.limit
        self._check("emitted = declared", agree, where, "emitted {}, declared {}, ids {}, limit {}", state.emitted,
                    record.output_tokens, declared, state.limit)  # fmt: skip
        if record.outcome == Outcome.FINISHED:
            self._finish(where, state)
            if state.away_ns:
                self._away[record.request] = state.away_ns

    def _finish(self, where: str, state: AuditedRequest) -> None:
        self._check("emitted = declared", state.emitted > 0, where, "finished without a token")
        self._check("sampled at the end", not state.token_lost, where, "finished by a step that gave it no token")
        found = state.prefilled + (state.first_hit or 0)
        right = found <= state.prompt if state.preempted or state.recomputes else found == state.prompt
        self._check("R8 recompute once", right, where, "{} prompt tokens found or computed first of {}, {} "
                    "preemptions", found, state.prompt, state.preempted)  # fmt: skip
        if state.first_ns is not None and state.last_ns is not None:
            e2e = state.last_ns - state.arrived_ns
            parts = state.first_ns - state.arrived_ns + state.gaps_ns
            self._check("R4 additivity", parts == e2e, where, "TTFT + gaps is {} ns, E2E {} ns", parts, e2e)

    def _conservation(self) -> None:
        if self._started is None:
            self._check("offered = outcomes", False, "run", "the records have no start")
            return
        complete = self._finished is not None and self._finished.complete
        ended = sum(self._ended.values())
        if complete:
            self._check("offered = outcomes", ended == self._started.offered and not self._open, "run",
                        "{} offered, {} ended {}, {} open", self._started.offered, ended, dict(self._ended),
                        len(self._open))  # fmt: skip
        else:
            self._check("offered = outcomes", ended <= self._started.offered, "run", "{} offered, {} ended",
                        self._started.offered, ended)  # fmt: skip


def _where(step: int, instance: int) -> str:
    return f"step {step} of instance {instance}" if instance else f"step {step}"


def _served(step: Step | Steps) -> list[int]:
    """Requests with a grant of their own, or stalled."""
    return [row[0] for row in step.grants] + [row[0] for row in step.stalled]


def _at(place: tuple[str, int]) -> str:
    """Where a fault lies: built only when there is one."""
    return f"{place[0]} request {place[1]}"
