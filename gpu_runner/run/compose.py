"""The composition root: plays one arrival plan through one policy on one target and leaves audited evidence."""

import logging
from collections.abc import Callable
from pathlib import Path

from gpu_runner.process import Deadline, Emit
from gpu_runner.run.playing import Playing
from gpu_runner.run.progress import Progress
from scheduler_core.drive.fork import due_from
from scheduler_core.evidence.live.sampler import Tee
from scheduler_core.evidence.records.segments import SegmentInfo, SegmentWriter, read_records
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.files import write_json
from scheduler_core.spec.job import (
    ArtifactMessage,
    ResultMessage,
    RunJob,
    Sample,
    SampleMessage,
    SegmentMessage,
    StateMessage,
)
from scheduler_core.types.errors import HeadwayError, InputError, Problem
from scheduler_core.types.time import NS_PER_MS, ns_from_s
from scheduler_core.workload.plan import ArrivalPlan

log = logging.getLogger(__name__)

SAMPLES_AT_MOST = 1500


def execute(job: RunJob, emit: Emit, stop: Callable[[], bool]) -> ResultMessage:
    """Do the run that ``job`` describes; ``emit`` gets each message but the last, which is returned.

    ``stop`` is asked between steps; once true the run ends as cancelled with what was measured kept. Errors that a
    user can act on become the reason of a failed result; anything else does too, and its traceback goes to the log.
    """
    try:
        return _Run(job, emit, stop).play()
    except HeadwayError as error:
        return ResultMessage(outcome="failed", reason=str(error))
    except MemoryError:
        return ResultMessage(outcome="failed", reason="out of memory; use a smaller model, pool or batch")
    except Exception as error:  # the process boundary: a fault must become a reason, never a silent death
        log.exception("run %s failed", job.run)
        return ResultMessage(outcome="failed", reason=f"internal fault: {type(error).__name__}: {error}")


class _Run:
    """One execution, phase by phase; each phase hands plain values to the next."""

    def __init__(self, job: RunJob, emit: Emit, stop: Callable[[], bool]) -> None:
        self.job = job
        self.emit = emit
        self.folder = Path(job.workdir)
        self.deadline = Deadline(stop, job.wall_limit_s)
        self.samples = 0
        self.segments: list[Path] = []
        self.warmup_share = job.warmup_share

    def play(self) -> ResultMessage:
        """Starting, running, finalising."""
        job = self.job
        self.emit(StateMessage(state="starting"))
        self.folder.mkdir(parents=True, exist_ok=True)
        plan = ArrivalPlan.read(Path(job.plan_file))
        self.warmup_share = max(job.warmup_share, _before_fork(job, plan))
        playing = _playing(job, plan, self.deadline)
        try:
            self._serve(plan, playing)
        finally:
            playing.close()
        self.emit(StateMessage(state="finalising"))
        summary = self._finalise(playing)
        if self.deadline.reason:
            return ResultMessage(
                outcome=self.deadline.outcome, reason=self.deadline.reason, summary=summary.canonical()
            )
        return ResultMessage(outcome="succeeded", summary=summary.canonical())

    def _serve(self, plan: ArrivalPlan, playing: Playing) -> None:
        """Play the plan; every record goes to the segments and into the live samples."""
        writer = SegmentWriter(
            self.folder, records_per_segment=self.job.segment_records, on_closed=self._segment_closed
        )
        sampler = playing.sampler(self._sample_interval_ns(plan), self._sampled)
        sink = Tee(writer, sampler)
        try:
            playing.play(sink, self.deadline, Progress(self.emit), lambda: self.emit(StateMessage(state="running")))
        finally:
            sampler.flush()
            writer.close()

    def _finalise(self, playing: Playing) -> RunSummary:
        """Audit the records, write tables and summary, set it beside the model, and announce every file."""
        before = set(self.folder.iterdir())
        summary = playing.finalise(
            read_records(self.segments),
            folder=self.folder,
            arm=self.job.arm,
            repeat=self.job.repeat,
            tiers=self.job.tiers,
            warmup_share=self.warmup_share,
        )
        summary = playing.beside_model(summary, lambda: read_records(self.segments))
        write_json(self.folder / "summary.json", summary.canonical())
        for path in sorted(set(self.folder.iterdir()) - before):
            self.emit(ArtifactMessage.of(path))
        return summary

    def _sample_interval_ns(self, plan: ArrivalPlan) -> int:
        """The asked interval, or longer where simulated time is so long that samples would outnumber pixels."""
        span = max((request.arrival_ns for request in plan.requests), default=0)
        return max(round(self.job.sample_interval_ms * NS_PER_MS), span // SAMPLES_AT_MOST)

    def _sampled(self, sample: Sample) -> None:
        self.samples += 1
        self.emit(SampleMessage(seq=self.samples, values=sample.canonical()))

    def _segment_closed(self, info: SegmentInfo) -> None:
        self.segments.append(info.path)
        self.emit(
            SegmentMessage(
                number=info.number,
                file=str(info.path),
                bytes=info.bytes,
                records=info.records,
                sha256=info.sha256,
            )
        )


def _playing(job: RunJob, plan: ArrivalPlan, stop: Callable[[], bool]) -> Playing:
    """The plan at the starting line of the job's target; what another kind of target needs is not even imported."""
    if job.target.server is None:
        from gpu_runner.run.inside import InsideRun

        return InsideRun(job, plan)
    from gpu_runner.run.outside import OutsideRun

    return OutsideRun(job, plan, stop)


def _before_fork(job: RunJob, plan: ArrivalPlan) -> float:
    """Share of the requests before the job's fork, aimed between two requests so that rounding cannot miss."""
    if job.fork is None:
        return 0.0
    first = due_from(plan.requests, ns_from_s(job.fork.at_s))
    if first >= len(plan.requests):
        message = f"is {job.fork.at_s:g}, but no request is due from there on, so nothing could be compared"
        raise InputError([Problem("fork.at_s", message)])
    return (first + 0.5) / len(plan.requests) if first else 0.0
