"""Folds a run's records into columns: one pass, open requests as objects, everything else as arrays."""

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scheduler_core.evidence.columns import MISSING, GrowingColumns, Ints
from scheduler_core.evidence.fold.chunks import even_gaps
from scheduler_core.evidence.fold.counts import Counts, Rows, counts_of
from scheduler_core.evidence.fold.crowd import Crowd
from scheduler_core.evidence.fold.drafts import draft_row, is_speculative
from scheduler_core.evidence.fold.instances import Idleness, PoolTotals, PowerTotals
from scheduler_core.evidence.fold.layout import REQUEST_INTS, SEGMENT_COLUMNS, Labels, TakesRow, TakesRows
from scheduler_core.evidence.fold.moves import MovesFold
from scheduler_core.evidence.fold.spread import spread_row
from scheduler_core.evidence.fold.sweep import SEGMENTS, Segment, StepTime
from scheduler_core.evidence.fold.timeline import Timeline
from scheduler_core.evidence.records.decisions import Decisions
from scheduler_core.evidence.window import Window
from scheduler_core.types.cluster_records import (
    ColdStartStage,
    Leased,
    LeaseEnded,
    OutageStage,
    Overflowed,
    PoolChanged,
    Scaled,
)
from scheduler_core.types.intervals import IntervalClass
from scheduler_core.types.plan import Phase
from scheduler_core.types.reasons import Disposal, Outcome, Stall
from scheduler_core.types.records import (
    Admitted,
    Arrived,
    CacheReset,
    Deferred,
    Finished,
    Gated,
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
    Tie,
)
from scheduler_core.types.time import Ns

_PREFILL, _DECODE, _RECOMPUTE = Phase.PREFILL.value, Phase.DECODE.value, Phase.RECOMPUTE.value
_STALLED = IntervalClass.STALLED.value
_MODEL_LOAD = IntervalClass.MODEL_LOAD.value


class RunFold:
    """Takes the records of one run in order; `requests` grows as requests end, ``steps`` and ``gaps`` as they happen.

    ``steps`` and ``gaps`` are given by the caller, so that a long run's rows can be written out as they come; the rows
    of its requests go to a scratch file in ``folder``.
    """

    def __init__(
        self,
        steps: TakesRow,
        gaps: TakesRows,
        labels: Labels,
        *,
        chunks: TakesRow | None = None,
        warmup_share: float = 0.0,
        folder: Path | None = None,
    ) -> None:
        self.labels = labels
        self.window = Window(warmup_share)
        self.decisions = Decisions()
        self.requests = GrowingColumns((*REQUEST_INTS, *SEGMENT_COLUMNS), folder)
        self.started: RunStarted | None = None
        self.finished: RunFinished | None = None
        self.loads: list[Segment] = []
        self.device_bytes = MISSING
        self.ties: dict[int, list[int]] = {}
        self.outputs: dict[int, list[int]] = {}
        self._steps = steps
        self._gaps = gaps
        self._chunks = chunks
        self._open: dict[int, Timeline] = {}
        self.power, self.pools = PowerTotals(), PoolTotals()
        self._instances: defaultdict[int, Idleness] = defaultdict(Idleness)
        self._moves = MovesFold(self._line, self._instances, self.loads, self._token)
        self.handoffs, self.outages = self._moves.handoffs, self._moves.outages
        self._available: dict[int, Ns] = {}
        self._crowds: dict[int, Crowd] = {}
        self._fresh: defaultdict[int, list[int]] = defaultdict(list)
        self._gave_way: defaultdict[int, list[int]] = defaultdict(list)
        self._takers: dict[type[Any], Any] = {
            RunStarted: self._run_started,
            Loaded: self._loaded,
            Arrived: self._arrived,
            Gated: self._gated,
            Admitted: self._admitted,
            Deferred: self._deferred,
            Step: self._step,
            Steps: self._stretch,
            Preempted: self._preempted,
            **self._moves.takers(),
            OutageStage: self.outages.take,
            Scaled: self.power.take,
            ColdStartStage: lambda record: None,  # `Scaled` says when the start is over
            PoolChanged: self.pools.take,
            Overflowed: self.pools.overflowed,
            Leased: self.handoffs.leased,
            LeaseEnded: self.handoffs.lease_ended,
            Paused: self._paused,
            Resumed: lambda record: None,  # the wait ends with the step in which it runs again
            Swapped: lambda record: None,  # it waits on, wherever its KV is
            CacheReset: lambda record: None,  # who lost blocks to it has a record of that
            Tie: self._tie,
            Finished: self._finished,
            RunFinished: self._run_finished,
        }

    def take(self, record: Record) -> None:
        """Fold one record."""
        self._takers[type(record)](record)

    @property
    def open_requests(self) -> list[int]:
        """Requests that arrived and have not ended."""
        return list(self._open)

    def outputs_digest(self) -> str | None:
        """Digest over the emitted token ids of finished requests, in order of request; None without real tokens."""
        if not self.outputs:
            return None
        digest = hashlib.blake2b(digest_size=16)
        for request in sorted(self.outputs):
            digest.update(f"{request}:{self.outputs[request]}\n".encode())
        return digest.hexdigest()

    def end(self) -> Mapping[str, Ints]:
        """Close whatever is still open (the records stopped early) as cut off; the request columns, by index."""
        for crowd in self._crowds.values():
            crowd.release_all(list(crowd.members))
        for request, line in list(self._open.items()):
            at = max(line.cursor, line.pending_end)
            self._finished(Finished(at, request, Outcome.CUT_OFF, "records_ended", "records_ended", line.tokens))
        return self.requests.sorted_by("request")

    def _run_started(self, record: RunStarted) -> None:
        self.started = record
        self.window.opens_with = int(self.window.warmup_share * record.offered)

    def _run_finished(self, record: RunFinished) -> None:
        self.finished = record

    def _loaded(self, record: Loaded) -> None:
        self.loads.append(Segment(_MODEL_LOAD, record.start_ns, record.end_ns))
        if record.device_bytes is not None:
            self.device_bytes = max(self.device_bytes, record.device_bytes)

    def _arrived(self, record: Arrived) -> None:
        self._open[record.request] = line = Timeline(record)
        self._instances[line.instance].enter(record.at_ns)
        self.window.arrived(record.request, record.at_ns)

    def _gated(self, record: Gated) -> None:
        """A throttled request waits, a rejected one ends, and both have their own records: what is left is less."""
        line = self._line(record.request)
        if line is not None and record.disposal == Disposal.DEGRADE:
            line.degraded = f"output_limit={record.output_limit}, priority={record.priority}"

    def _admitted(self, record: Admitted) -> None:
        line = self._line(record.request)
        if line is None:
            return
        if record.resumed:
            line.rehit_tokens += record.hit_tokens
        elif line.hit_tokens is None:
            line.hit_tokens, line.host_hit_tokens = record.hit_tokens, record.host_tokens
            line.shared_tokens = record.shared_tokens

    def _deferred(self, record: Deferred) -> None:
        line = self._line(record.request)
        if line is not None:
            self._instances[line.instance].reason = record.reason

    def _preempted(self, record: Preempted) -> None:
        line = self._line(record.request)
        if line is not None:
            self._instances[line.instance].resident -= line.waiting_since is None
            line.wait_again(record, self.loads)
            self._gave_way[line.instance].append(record.request)

    def _paused(self, record: Paused) -> None:
        line = self._line(record.request)
        if line is not None:
            self._instances[line.instance].resident -= line.waiting_since is None
            line.pause(record.at_ns)
            self._gave_way[line.instance].append(record.request)

    def _tie(self, record: Tie) -> None:
        self.ties.setdefault(record.request, []).append(record.position)

    def _step(self, record: Step) -> None:
        shape = StepTime(record.planned_ns, record.available_ns, record.lanes, spread=record.spread is not None)
        self.decisions.take(record, self._block_size)
        idle = self._idle(record.instance, shape)
        counts = counts_of(record.grants)
        accepted = {request: accepted for request, _drafted, accepted in record.drafts}
        self._give_way(record.instance, shape)
        self._account(record.instance, shape, record.grants, record.stalled, accepted)
        if record.device_bytes is not None:
            self.device_bytes = max(self.device_bytes, record.device_bytes)
        blocks = (record.kv_used, record.kv_cached, record.kv_free)
        self._row(record, record.id, shape, counts, blocks, idle)

    def _stretch(self, record: Steps) -> None:
        """Fold steps of one make-up. Who decodes along is in the crowd from the step after his first on."""
        self.decisions.take_stretch(record, self._block_size)
        crowd = self._crowds.get(record.instance)
        if crowd is None:
            crowd = self._crowds[record.instance] = Crowd(self._gaps, self.labels.causes)
        fresh = self._fresh[record.instance]
        crowd.release_all(record.left)
        if record.left and fresh:
            fresh[:] = [request for request in fresh if request not in record.left]
        shape = first = StepTime(record.planned_ns, record.available_ns[0], record.lanes)
        self._give_way(record.instance, shape)
        for number, blocks in enumerate(zip(record.kv_used, record.kv_cached, record.kv_free, strict=True)):
            if number:
                shape = first.again(shape.end_ns, record.available_ns[number])
            if fresh:
                fresh[:] = self._enter(crowd, fresh)
            if not number:
                fresh += [row[0] for row in record.joined]
            rows = record.grants
            if fresh:
                rows = [*rows, *((request, 0, 0, 1, _DECODE, 1, 0) for request in fresh)]
            idle = self._idle(record.instance, shape)
            counts = counts_of(rows, len(crowd.members))
            if rows or record.stalled:
                self._account(record.instance, shape, rows, record.stalled, {})
            crowd.step(shape, has_prefill=counts.prefilling > 0)
            self.window.emitted(shape.end_ns, len(crowd.members))
            self._row(record, record.id + number, shape, counts, blocks, idle)

    def _enter(self, crowd: Crowd, fresh: list[int]) -> list[int]:
        """Let those into the crowd who can be accounted with it; the others."""
        out = []
        for request in fresh:
            line = self._open.get(request)
            if line is not None and line.first_gap is not None and line.last_token == crowd.last_ns:
                crowd.enter(request, line)
            elif line is not None:
                out.append(request)
        return out

    @property
    def _block_size(self) -> int:
        return self.started.block_size if self.started else 1

    def _idle(self, instance: int, shape: StepTime) -> tuple[Ns, Ns, str]:
        """Idle time of an instance before a step, by kind, and why the device was held."""
        idleness = self._instances[instance]
        found = idleness.before(shape)
        idleness.reason = ""
        return found

    def _row(
        self,
        record: Step | Steps,
        number: int,
        shape: StepTime,
        counts: Counts,
        blocks: tuple[int, int, int],
        idle: tuple[Ns, Ns, str],
    ) -> None:
        device_bytes = record.device_bytes if isinstance(record, Step) else None
        self._steps.append(
            number, shape.planned_ns, shape.end_ns, shape.compute_ns, shape.work_ns, self._path(record.instance, shape),
            counts.prefill, counts.decode, counts.recompute, counts.prefilling, counts.decoding, len(record.stalled),
            *blocks, record.waiting, record.running, record.paused, record.budget, _int(device_bytes), record.instance,
            *idle[:2], self.labels.causes.code(idle[2]) if idle[2] else MISSING, record.host_used, record.copied_out,
            record.copied_in, record.evicted_ahead, record.copied_on_write,
            *draft_row(record, speculative=is_speculative(self.started)),
            *spread_row(record.spread if isinstance(record, Step) else None),
        )  # fmt: skip

    def _path(self, instance: int, shape: StepTime) -> Ns:
        """What the step adds to its instance's critical path: its span, less what lies over the step before."""
        before = self._available.get(instance, shape.planned_ns)
        self._available[instance] = shape.end_ns
        return max(0, shape.end_ns - max(before, shape.planned_ns))

    def _line(self, request: int) -> Timeline | None:
        """An open request, with its own account up to date: from here on it decodes along no more."""
        line = self._open.get(request)
        if line is not None and line.along is not None:
            self._crowds[line.instance].release(request)
        return line

    def _give_way(self, instance: int, shape: StepTime) -> None:
        """Who lost its place while a step was planned stands right before it, and takes no part in it."""
        for request in self._gave_way.pop(instance, ()):
            line = self._open.get(request)
            if line is not None:
                line.give_way(shape)

    def _account(
        self,
        instance: int,
        shape: StepTime,
        grants: Rows,
        stalled: list[tuple[int, str]],
        accepted: Mapping[int, int],
    ) -> None:
        at, loads, idleness = shape.end_ns, self.loads, self._instances[instance]
        has_prefill = any(grant[4] != _DECODE for grant in grants)
        for request, _, start, length, phase, sampled, _ in grants:
            line = self._line(request)
            if line is None:
                continue  # a step of a request that has ended: the audit reports it
            idleness.resident += line.waiting_since is not None
            line.join(shape, phase, loads)
            line.steps += 1
            line.work += shape.work_ns
            if phase == _PREFILL:
                line.prefilled += length
            elif phase == _RECOMPUTE:
                line.compute_again(start, length)
            if has_prefill and phase == _DECODE:
                line.gap_prefill = True
            if sampled:
                self._token(request, line, at, 1 + accepted.get(request, 0))
        for request, cause in stalled:
            line = self._line(request)
            if line is not None:
                line.join(shape, _STALLED, loads)
                if cause != Stall.IN_FLIGHT:  # its own step before still runs: that is no stall
                    line.stalled_steps += 1
                    line.stall_cause = line.gap_stalled = cause

    def _token(self, request: int, line: Timeline, at_ns: Ns, tokens: int = 1) -> None:
        """``tokens`` tokens came; of several, each counts its even part of the wait, as of a stream chunk."""
        if self.outages.waiting:
            self.outages.served(request, at_ns)
        wait = line.emit(at_ns, tokens)
        self.window.emitted(at_ns, tokens)
        if self._chunks is not None:
            self._chunks.append(request, line.chunks - 1, at_ns, tokens, _int(wait))
        if wait is None:
            return
        cause = self.labels.causes.code(line.end_gap(wait, tokens))
        at_ns -= wait
        for token, gap in enumerate(even_gaps(wait, tokens), start=line.tokens - tokens):
            at_ns += gap
            self._gaps.append(request, token, at_ns, gap, cause)

    def _finished(self, record: Finished) -> None:
        line = self._line(record.request)
        if line is None:
            return  # ended twice or never arrived: the audit reports it
        del self._open[record.request]
        instance = self._instances[line.instance]
        instance.resident -= line.waiting_since is None
        instance.leave()
        self.handoffs.forget(record.request)
        self.outages.served(record.request, record.at_ns)
        self.window.ended(record.request, record.at_ns)
        finished = record.outcome == Outcome.FINISHED
        last = line.last_token if finished and line.last_token is not None else record.at_ns
        line.finish(last, self.loads)
        if record.tokens is not None and finished:
            self.outputs[record.request] = record.tokens
        self._close_row(record, line)

    def _close_row(self, record: Finished, line: Timeline) -> None:
        arrived, labels = line.arrived, self.labels
        cold = any(arrived.at_ns < load.end_ns for load in self.loads)
        self.requests.append(
            record.request,
            labels.tenants.code(arrived.tenant),
            labels.tiers.code(arrived.tier),
            arrived.prompt_tokens,
            arrived.output_limit,
            line.tokens,
            _int(line.hit_tokens),
            line.rehit_tokens,
            line.preemptions,
            line.recomputed,
            line.steps,
            line.stalled_steps,
            arrived.at_ns,
            record.at_ns,
            _int(line.first_token),
            _int(line.last_token),
            _int(line.first_gap),
            _int(line.longest_gap),
            line.longest_index,
            labels.causes.code(line.cause) if line.cause else MISSING,
            labels.causes.code(line.stall_cause) if line.stall_cause else MISSING,
            labels.outcomes.code(record.outcome),
            labels.stages.code(record.stage),
            labels.reasons.code(record.reason),
            int(cold),
            *_first_parts(line),
            max(0, line.work - sum(line.segments[rank] for rank in _WORK_RANKS)),
            line.pauses,
            labels.changes.code(line.degraded) if line.degraded else MISSING,
            line.host_hit_tokens,
            line.shared_tokens,
            line.prefilled,
            *line.segments,
        )


def _int(value: int | None) -> int:
    return MISSING if value is None else value


_WORK_RANKS = tuple(
    SEGMENTS.index(name)
    for name in (
        IntervalClass.COMPUTE_PREFILL,
        IntervalClass.COMPUTE_DECODE,
        IntervalClass.RECOMPUTE,
        IntervalClass.INPUT_TRANSFER,
        IntervalClass.INPUT_PREPARE,
        IntervalClass.SWAP,
        IntervalClass.COMMUNICATION,
        IntervalClass.OUTPUT_TRANSFER,
        IntervalClass.STREAM_OUTPUT,
    )
)
_RANK_QUEUE = SEGMENTS.index(IntervalClass.QUEUE)
_RANK_PREFILL = SEGMENTS.index(IntervalClass.COMPUTE_PREFILL)


def _first_parts(line: Timeline) -> tuple[int, int]:
    """Queue and prefill before the first token; `MISSING` when there was none."""
    parts = line.segments_at_first
    return (MISSING, MISSING) if parts is None else (parts[_RANK_QUEUE], parts[_RANK_PREFILL])
