"""Evidence records of what passes through a driver."""

from collections import Counter

from scheduler_core.sched.plan import Completed, Ended, Planned
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.intervals import HOST, IntervalClass
from scheduler_core.types.plan import PHASE_NAMES, StepResult
from scheduler_core.types.records import Arrived, Finished, Step
from scheduler_core.types.time import Ns


def arrived_record(planned: PlannedRequest, at_ns: Ns, seen_ns: Ns) -> Arrived:
    """``planned`` was due at ``at_ns`` and taken up at ``seen_ns``."""
    return Arrived(
        at_ns,
        seen_ns,
        planned.index,
        planned.prompt_tokens,
        planned.output_limit,
        planned.tenant,
        planned.tier,
        planned.group,
    )


def step_record(
    planned: Planned, result: StepResult, completed: Completed, *, host_since_ns: Ns | None = None, instance: int = 0
) -> Step:
    """A step that came back.

    A grant counts as sampled when its token was taken: not in a failed step, not for a cancelled request.
    ``host_since_ns`` is when the step before came back, if the host was busy since: book-keeping between two steps
    holds up every resident request; it is measured, not left over.
    """
    plan, now = planned.plan, planned.occupancy
    emitted = {number for number, _request in completed.emitted}
    grants = [
        (request, epoch, start, length, PHASE_NAMES[phase], 1 if number in emitted else 0, hits)
        for number, (request, epoch, start, length, _blocks, _samples, phase, hits, _drafts) in enumerate(plan.grants)
    ]
    lanes = [(lane.kind, lane.resource, lane.start_ns, lane.end_ns) for lane in result.lanes]
    if host_since_ns is not None and host_since_ns < planned.planned_ns:
        lanes.insert(0, (IntervalClass.HOST_GAP.value, HOST, host_since_ns, planned.planned_ns))
    return Step(
        id=plan.id,
        digest=plan.digest(),
        planned_ns=planned.planned_ns,
        available_ns=result.available_ns,
        grants=grants,
        lanes=lanes,
        stalled=list(planned.stalled),
        kv_used=now.kv_used,
        kv_cached=now.kv_cached,
        kv_free=now.kv_free,
        waiting=now.waiting,
        running=now.running,
        paused=now.paused,
        budget=planned.budget,
        instance=instance,
        host_used=now.host_used,
        copied_out=len(plan.copies_out),
        copied_in=len(plan.copies_in),
        evicted_ahead=planned.evicted_ahead,
        copied_on_write=len(plan.copies_on_write),
        spread=result.spread,
        drafts=_drafts(planned, completed),
    )


def _drafts(planned: Planned, completed: Completed) -> list[tuple[int, int, int]]:
    """Rows of `Step.drafts`: of what a grant emitted, all but the last token were drafts."""
    drafting = [(number, grant) for number, grant in enumerate(planned.plan.grants) if grant.drafts]
    if not drafting:
        return []
    emitted = Counter(number for number, _request in completed.emitted)
    return [(grant.request, grant.drafts, max(0, emitted[number] - 1)) for number, grant in drafting]


def finished_record(ended: Ended, at_ns: Ns, tokens: list[int] | None) -> Finished:
    """A request is over; ``tokens`` are the emitted ids where there are real ones."""
    return Finished(
        at_ns=at_ns,
        request=ended.request,
        outcome=ended.outcome.value,
        stage=ended.stage,
        reason=ended.reason,
        output_tokens=ended.output_tokens,
        need=ended.need,
        have=ended.have,
        tokens=tokens or None,
    )
