"""Live samples of a run, folded from the same records that the evidence is made of."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from scheduler_core.evidence.audit.replay import Audit
from scheduler_core.evidence.live.moves import LiveMoves
from scheduler_core.evidence.records.condense import Condenser
from scheduler_core.evidence.records.expand import lanes_of
from scheduler_core.spec.job import PoolSample, Sample
from scheduler_core.types.cluster_records import Emitted, Handoff, Landed, Parked, Reassigned, Routed
from scheduler_core.types.intervals import COMPUTE
from scheduler_core.types.plan import Phase
from scheduler_core.types.quantile import Ascending, Weighted, quantile
from scheduler_core.types.records import (
    Admitted,
    Arrived,
    Finished,
    Paused,
    Preempted,
    Record,
    Resumed,
    RunStarted,
    Step,
    Steps,
)
from scheduler_core.types.time import NS_PER_S, Ns, ms_from_ns, s_from_ns

WINDOW_NS = 2 * NS_PER_S
_DECODE = Phase.DECODE.value
_TOGETHER = 64
"""Records that are folded together at the latest."""


class _Occupied(NamedTuple):
    """Requests and blocks of an instance after its newest step."""

    paused: int
    kv_used: int
    kv_cached: int
    kv_free: int


class TakesRecords(Protocol):
    """Whatever takes records in order, such as a sink of the driver."""

    def write(self, record: Record) -> None:
        """Take one record."""


class Tee:
    """A sink that hands each record to several sinks, in order."""

    def __init__(self, *sinks: TakesRecords) -> None:
        self._writes = [sink.write for sink in sinks]

    def write(self, record: Record) -> None:
        """Hand the record on."""
        for write in self._writes:
            write(record)


class LiveSampler:
    """A sink that emits a `Sample` at multiples of ``interval_ns`` of record time.

    Rates and percentiles look back over a sliding window (``window_ns``). A quiet stretch longer than the interval
    yields one sample, at the last multiple passed: nothing happened that another would show. Costs microseconds a
    step; sorting happens only when a sample is due. The account of blocks, requests and tokens is audited as it goes.

    Records are folded together, when one makes a sample due or many wait. Between any two steps of an engine, whose
    weights push all else out of the processor's caches, what folding needs would come from memory each time.
    """

    def __init__(
        self, *, interval_ns: Ns, total: int, on_sample: Callable[[Sample], None], window_ns: Ns = WINDOW_NS
    ) -> None:
        self.total = total
        self.done = 0
        self._interval = interval_ns
        self._window_ns = window_ns
        self._on_sample = on_sample
        self._unfolded: list[Record] = []
        self._due = interval_ns
        self._now: Ns = 0
        self._open: dict[int, Ns] = {}
        self._prompt: dict[int, int] = {}
        self._instance: dict[int, int] = {}
        self._last_token: dict[int, Ns] = {}
        self._resident: set[int] = set()
        self._stopped: set[int] = set()
        self._preemptions = 0
        self._account = Audit()
        self._moves = LiveMoves()
        self._condenser: Condenser | None = None
        self._occupied: dict[int, _Occupied] = {}
        self._along: defaultdict[int, set[int]] = defaultdict(set)
        self._newest: dict[int, Ns] = {}
        self._groups: list[str] = []
        self._step_tokens = (0, 0)
        self._budget = 0
        self._tokens: deque[tuple[Ns, int, int]] = deque()
        self._busy: deque[tuple[Ns, Ns, int]] = deque()
        self._lookups: deque[tuple[Ns, int, int]] = deque()
        self._ttft: deque[tuple[Ns, Ns]] = deque()
        self._gaps: deque[tuple[Ns, Ns, int]] = deque()

    def write(self, record: Record) -> None:
        """Take one record; emits the sample that it makes due."""
        self._unfolded.append(record)
        if isinstance(record, Steps) or len(self._unfolded) == _TOGETHER or (_time_of(record) or 0) >= self._due:
            self._fold_all()

    def flush(self) -> None:
        """Emit the last sample, at the time of the last record."""
        self._fold_all()
        self._emit(self._now)

    def _fold_all(self) -> None:
        unfolded, self._unfolded = self._unfolded, []
        for record in unfolded:
            self._fold(record)

    def _fold(self, record: Record) -> None:
        if self._condenser is not None and isinstance(record, Step):
            record = self._condenser.take(record)
        self._account.take(record)
        if isinstance(record, Steps):
            self._take_stretch(record)
            return
        at = _time_of(record)
        if at is not None and at >= self._due:
            self._emit(at - at % self._interval)
        if self._groups:
            self._moves.take(record)
        if isinstance(record, Step):
            self._take_step(record)
        elif isinstance(record, RunStarted):
            self._groups = [described["group"] for described in record.instances]
            # Elsewhere requests move between instances, and steps have more to tell.
            self._condenser = Condenser() if record.source == "kernel" and not record.instances else None
        elif isinstance(record, Arrived):
            self._open[record.request] = record.at_ns
            self._prompt[record.request] = record.prompt_tokens
        elif isinstance(record, Routed):
            self._instance[record.request] = record.instance
        elif isinstance(record, Admitted):
            self._resident.add(record.request)
            if not record.resumed:  # a look-up after a preemption finds the request's own blocks and says nothing
                self._lookups.append((record.at_ns, record.hit_tokens, self._prompt.get(record.request, 0)))
        elif isinstance(record, Preempted):
            self._preemptions += 1
            self._leave(record.request)
        elif isinstance(record, Paused):
            self._resident.discard(record.request)
            self._stopped.add(record.request)
        elif isinstance(record, Resumed):
            self._stopped.discard(record.request)
            self._resident.add(record.request)
        elif isinstance(record, Parked):
            self._leave(record.request)
        elif isinstance(record, Emitted):
            self._first_token(record.request, record.at_ns)
        elif isinstance(record, Landed):
            self._instance[record.request] = record.instance
        elif isinstance(record, Handoff):
            if record.action == "recompute":
                self._instance[record.request] = record.destination
        elif isinstance(record, Reassigned):
            if record.action == "arrives":
                self._instance[record.request] = record.destination
        elif isinstance(record, Finished):
            self._take_finish(record)
        if at is not None and at > self._now:
            self._now = at

    def _first_token(self, request: int, at: Ns) -> None:
        if request in self._open:
            self._ttft.append((at, at - self._open[request]))
            self._last_token[request] = at

    def _take_finish(self, record: Finished) -> None:
        self.done += 1
        request = record.request
        self._leave(request)
        for table in (self._open, self._prompt, self._instance, self._last_token):
            table.pop(request, None)

    def _leave(self, request: int) -> None:
        """``request`` neither runs nor is paused: it waits, unless it has ended."""
        self._resident.discard(request)
        self._stopped.discard(request)

    def _take_step(self, step: Step) -> None:
        self._occupied[step.instance] = _Occupied(step.paused, step.kv_used, step.kv_cached, step.kv_free)
        self._budget = step.budget
        drafts = {request: (drafted, accepted) for request, drafted, accepted in step.drafts}
        self._take_grants(step.available_ns, step.grants, 0, drafts)
        self._busy.extend((start, end, step.instance) for kind, _resource, start, end in step.lanes if kind == COMPUTE)

    def _take_stretch(self, steps: Steps) -> None:
        """Fold steps of one make-up one by one; who decodes along is counted, and looked at when he starts or stops."""
        along, before = self._along[steps.instance], self._newest.get(steps.instance, 0)
        for request in steps.left:
            along.discard(request)
            if request in self._open:
                self._last_token[request] = before
        fresh = [(request, epoch, start, 1, _DECODE, 1, 0) for request, epoch, start in steps.joined]
        blocks = zip(steps.kv_used, steps.kv_cached, steps.kv_free, strict=True)
        for (_planned, at, lanes), counts in zip(lanes_of(steps), blocks, strict=True):
            if at >= self._due:
                self._emit(at - at % self._interval)
            self._occupied[steps.instance], self._budget = _Occupied(steps.paused, *counts), steps.budget
            if along:
                self._gaps.append((at, at - before, len(along)))
            self._take_grants(at, [*steps.grants, *fresh], len(along), {})
            self._busy.extend((start, end, steps.instance) for kind, _, start, end in lanes if kind == COMPUTE)
            along.update(row[0] for row in fresh)
            fresh, before = [], at
        self._newest[steps.instance] = before
        self._now = max(self._now, before)

    def _take_grants(
        self,
        at: Ns,
        grants: Iterable[tuple[int, int, int, int, str, int, int]],
        along: int,
        drafts: Mapping[int, tuple[int, int]],
    ) -> None:
        """Fold the grants of a step, and those of ``along`` requests that decode along.

        ``drafts`` are tokens drafted and accepted, by request; decoded are those that came of it.
        """
        prefill, decode, rejected = 0, along, 0
        last_token = self._last_token
        for request, _epoch, _start, length, phase, sampled, _hit in grants:
            if phase == Phase.DECODE:
                decode += length
            else:
                prefill += length
            drafted, accepted = drafts.get(request, (0, 0))
            rejected += drafted - accepted
            if sampled:
                before = last_token.get(request)
                if before is not None:
                    self._gaps.append((at, (at - before) // (1 + accepted), 1 + accepted))
                else:
                    self._first_token(request, at)
                last_token[request] = at
        self._step_tokens = (prefill, decode)
        self._tokens.append((at, prefill, decode - rejected))

    def _emit(self, at: Ns) -> None:
        self._due = at - at % self._interval + self._interval
        self._forget(at - self._window_ns)
        span_ns = max(min(self._window_ns, at), 1)
        span_s = s_from_ns(span_ns)
        begin = at - span_ns
        busy = self._busy_ns(begin, at)
        looked_up = sum(tokens for _, _, tokens in self._lookups)
        ttft = sorted(value for _, value in self._ttft)
        gaps = Weighted((gap, count) for _, gap, count in self._gaps)
        steps = self._occupied.values()
        self._on_sample(
            Sample(
                t_s=s_from_ns(at),
                waiting=len(self._open) - len(self._resident) - len(self._stopped),
                running=len(self._resident),
                paused=len(self._stopped),
                kv_used=sum(step.kv_used for step in steps),
                kv_cached=sum(step.kv_cached for step in steps),
                kv_free=sum(step.kv_free for step in steps),
                hit_rate=sum(hit for _, hit, _ in self._lookups) / looked_up if looked_up else None,
                prefill_tokens_per_s=sum(row[1] for row in self._tokens) / span_s,
                decode_tokens_per_s=sum(row[2] for row in self._tokens) / span_s,
                busy_share=self._busy_share(range(max(1, len(self._groups))), busy, (begin, at)),
                step_prefill_tokens=self._step_tokens[0],
                step_decode_tokens=self._step_tokens[1],
                step_budget=self._budget,
                ttft_p50_ms=_ms(ttft, 0.5),
                ttft_p95_ms=_ms(ttft, 0.95),
                gap_p50_ms=_ms(gaps, 0.5),
                gap_p95_ms=_ms(gaps, 0.95),
                gap_p99_ms=_ms(gaps, 0.99),
                done=self.done,
                preemptions=self._preemptions,
                window_s=span_s,
                account_checks=self._account.checks.total(),
                account_broken=self._account.first_violation,
                pools=self._pools(busy, (begin, at)),
                **self._moved(at, span_ns),
            )
        )

    def _moved(self, at: Ns, span_ns: Ns) -> dict[str, Any]:
        """What moves between the instances of a cluster; nothing of one instance."""
        if not self._groups:
            return {}
        moves, span_s = self._moves, s_from_ns(span_ns)
        return {
            "on_the_way": moves.on_the_way,
            "moved_bytes_per_s": moves.bytes_since(at - span_ns) / span_s,
            "fallbacks": moves.fallbacks,
            "instance_changes": moves.changes,
        }

    def _busy_ns(self, begin: Ns, end: Ns) -> dict[int, Ns]:
        """For how long of ``[begin, end)`` each instance computed."""
        spent: dict[int, Ns] = {}
        for start, stop, instance in self._busy:
            spent[instance] = spent.get(instance, 0) + max(0, min(stop, end) - max(start, begin))
        return spent

    def _busy_share(self, members: Sequence[int], busy: dict[int, Ns], span: tuple[Ns, Ns]) -> float:
        """Time in which ``members`` computed over the time that they were held: one that is off counts for nothing."""
        held_ns = sum(self._moves.held_ns(index, *span) for index in members)
        return min(1.0, sum(busy.get(index, 0) for index in members) / held_ns) if held_ns else 0.0

    def _pools(self, busy: dict[int, Ns], span: tuple[Ns, Ns]) -> dict[str, PoolSample]:
        """Each group of a cluster's instances: who is there now, and the pools after their newest steps."""
        found: dict[str, PoolSample] = {}
        running = Counter(instance for request, instance in self._instance.items() if request in self._resident)
        taken_up = self._resident | self._stopped
        waiting = Counter(instance for request, instance in self._instance.items() if request not in taken_up)
        for group in dict.fromkeys(self._groups):
            members = [index for index, name in enumerate(self._groups) if name == group]
            steps = [self._occupied[index] for index in members if index in self._occupied]
            used = sum(step.kv_used for step in steps)
            blocks = sum(step.kv_used + step.kv_cached + step.kv_free for step in steps)
            found[group] = PoolSample(
                waiting=sum(waiting[index] for index in members),
                running=sum(running[index] for index in members),
                busy_share=self._busy_share(members, busy, span),
                kv_used_share=used / blocks if blocks else 0.0,
                on=self._moves.on(members),
            )
        return found

    def _forget(self, before: Ns) -> None:
        while self._tokens and self._tokens[0][0] <= before:
            self._tokens.popleft()
        while self._ttft and self._ttft[0][0] <= before:
            self._ttft.popleft()
        while self._gaps and self._gaps[0][0] <= before:
            self._gaps.popleft()
        while self._lookups and self._lookups[0][0] <= before:
            self._lookups.popleft()
        while self._busy and self._busy[0][1] <= before:
            self._busy.popleft()


def _time_of(record: Record) -> Ns | None:
    """When a record other than a stretch of steps happened, where it says so."""
    at: Ns | None = record.available_ns if isinstance(record, Step) else getattr(record, "at_ns", None)
    return at


def _ms(values: Ascending, share: float) -> float | None:
    return ms_from_ns(round(quantile(values, share))) if len(values) else None
