"""Applies the answer to a step: tokens, stops, publication, release."""

from collections.abc import Mapping
from operator import attrgetter
from typing import TypeAlias

from scheduler_core.request.lifecycle import Event, State
from scheduler_core.request.live import APART, LiveRequest
from scheduler_core.sched.decisions import Publish, Retain
from scheduler_core.sched.plan import Completed, Ended, FusedStep, Planned
from scheduler_core.sched.policy import Account, PolicySet
from scheduler_core.sched.state import InstanceState
from scheduler_core.types.errors import ExecutorError
from scheduler_core.types.plan import Grant, Phase, StepResult
from scheduler_core.types.reasons import Outcome

# Bound once: in CPython 3.11 reading a member off its enum class costs ten times a global.
_AT_GRANT = Publish.AT_GRANT
_AT_CONFIRM = Publish.AT_CONFIRM
_AT_CHUNK = Publish.AT_CHUNK
_DECODE = Phase.DECODE
_QUEUED = State.QUEUED
_FINISH = Event.FINISH
_BATCH = Retain.BATCH
_FINISHED = Outcome.FINISHED

STOPPED = "stop"
AT_LIMIT = "length"


def commit(state: InstanceState, policy: PolicySet, result: StepResult) -> Completed:
    """Take the oldest step in flight off the list and apply ``result``.

    Raises:
        ExecutorError: the result is not for that step or is impossible; nothing has changed.
    """
    planned = _expected(state, result)
    state.in_flight.popleft()
    state.memory.lift(planned.plan.id)
    if result.failure is not None:
        return Completed((), _fail(state, policy, planned, result.failure))
    emitted: list[tuple[int, int]] = []
    over: list[tuple[LiveRequest, str]] = []
    for number, (grant, answer) in enumerate(zip(planned.plan.grants, result.grants, strict=True)):
        request = state.requests.get(grant.request)
        if request is None:
            continue  # aborted while in flight: results that return later are ignored (V-29)
        if _confirm(state, policy, request, grant, answer.accepted):
            emitted.append((number, request.id))
            if answer.accepted:
                emitted += [(number, request.id)] * answer.accepted
            if answer.last or request.known >= request.stop_at:
                over.append((request, STOPPED if answer.last else AT_LIMIT))
    # What the step filled is published before anything is given up, whatever the order of its grants.
    ended = [finish(state, policy, request, reason) for request, reason in over]
    release_batch(state)
    return Completed(tuple(emitted), tuple(ended))


by_admission = attrgetter("run_seq")
"""Sort key of running requests."""

NOTHING_ACCEPTED: Mapping[int, int] = {}

FusedEffects: TypeAlias = tuple[list[LiveRequest], list[tuple[LiveRequest, Ended]]]
"""Who joined the cohort in a fused step, and who ended."""


def commit_fused(
    state: InstanceState,
    policy: PolicySet,
    step: FusedStep,
    ends: Mapping[int, str],
    accepted: Mapping[int, int] = NOTHING_ACCEPTED,
) -> FusedEffects:
    """Apply a fused step: sampling grants and decoders each emitted a token, the last one for those in ``ends``.

    ``ends`` maps requests to the reason of their end, ``accepted`` those with drafts to how many of them they emitted
    before that token. Requests that have caught up join the cohort.
    """
    requests, cohort, account = state.requests, state.cohort, policy.account
    if state.fused_step is not None:
        state.fused_step = None
        state.memory.lift(step.id)
    late = policy.prefix_cache and policy.publish is _AT_CONFIRM
    by_chunk = policy.prefix_cache and policy.publish is _AT_CHUNK
    if step.decoders:
        if late:
            state.memory.publish_cohort(cohort)
        cohort.advance()
    joined: list[LiveRequest] = []
    over: list[LiveRequest] = []
    for grant in step.grants:
        request = requests.get(grant.request)
        if request is None:
            continue  # aborted while the step ran
        more = accepted.get(grant.request, 0)
        request.confirm(grant.end, sampled=grant.samples, accepted=more)
        if late or (by_chunk and grant.phase is not _DECODE):
            state.memory.publish(request, request.confirmed)
        if not grant.samples:
            continue
        if account is not None:
            _tell_account(account, request, 1 + more)
        if request.id in ends or request.known >= request.stop_at:
            over.append(request)
        elif policy.groups_decodes:
            del state.apart[request.id]
            cohort.join(request)
            joined.append(request)
    for number in ends:
        member = requests[number]
        if member.joined != APART:
            over.append(member)
    if len(over) > 1:
        over.sort(key=by_admission)
    ended = [(request, finish(state, policy, request, ends.get(request.id, AT_LIMIT))) for request in over]
    if state.held:
        release_batch(state)
    state.released.clear()
    if by_chunk and not policy.cache.copies:
        state.memory.take_moves()  # nobody keeps block tables here; copies are the next plan's
    return joined, ended


def end(
    state: InstanceState,
    policy: PolicySet,
    request: LiveRequest,
    event: Event,
    *,
    outcome: Outcome,
    reason: str,
    granted: bool = False,
) -> Ended:
    """Remove a live request from wherever it is and give up its blocks, behind a fence while a step is in flight.

    ``granted``: as a member of the cohort it takes part in a fused step that has not come back.
    """
    stage, waits = request.stage, request.state is _QUEUED
    request.apply(event)
    if waits or (state.queues_stopped and request.id in state.stopped):
        state.waiting.remove(request)
    if waits:
        state.lodged.pop(request.id, None)
    elif state.parked.pop(request.id, None) is not None:
        state.released.append(request.id)
    else:
        if state.stopped.pop(request.id, None) is None:
            served = granted and request.joined != APART
            state.leave_running(request, granted=served)
            if served and policy.prefix_cache and policy.publish is _AT_GRANT:
                state.memory.publish(request, request.known)  # the step that runs fills it to the end
        state.released.append(request.id)
        if event is _FINISH and policy.publish is _AT_CHUNK:
            state.memory.publish(request, request.confirmed, fence=state.fence())
    del state.requests[request.id]
    if policy.predictor is not None and event is _FINISH:
        policy.predictor.finished(request)
    for observer in policy.observers:
        observer.ended(request, outcome)
    if event is _FINISH and policy.retain is _BATCH and not waits:  # one that waits holds neither slot nor blocks
        state.held.append(request)
    else:
        state.memory.release(request, fence=state.fence())
        if request.host_table:
            state.memory.forget_swapped(request)
    return Ended(request.id, outcome, stage, reason, request.emitted)


def release_batch(state: InstanceState) -> None:
    """When nobody of a batch runs any more, give up the slots and blocks of its finished members (ST-04)."""
    if state.held and not state.running:
        for request in state.held:
            state.memory.release(request)
        state.held.clear()


def _expected(state: InstanceState, result: StepResult) -> Planned:
    if not state.in_flight:
        raise ExecutorError(f"step {result.plan_id} came back, but none is in flight")
    planned = state.in_flight[0]
    if planned.plan.id != result.plan_id:
        raise ExecutorError(f"step {result.plan_id} came back, but step {planned.plan.id} is the oldest in flight")
    if result.failure is not None:
        return planned
    grants = planned.plan.grants
    if len(result.grants) != len(grants):
        raise ExecutorError(f"step {result.plan_id} has {len(grants)} grants, its result {len(result.grants)}")
    for grant, answer in zip(grants, result.grants, strict=True):
        if not grant.samples and (answer.last or answer.token is not None):
            raise ExecutorError(f"step {result.plan_id}: request {grant.request} was to emit nothing, got {answer}")
        if answer.accepted and not 0 < answer.accepted <= grant.drafts:
            message = f"{answer.accepted} of {grant.drafts} drafts accepted"
            raise ExecutorError(f"step {result.plan_id}: request {grant.request}: {message}")
    return planned


def _confirm(state: InstanceState, policy: PolicySet, request: LiveRequest, grant: Grant, accepted: int) -> bool:
    """Move the cursors; true when a token was emitted, and ``accepted`` drafts before it."""
    if request.epoch == grant.epoch:
        request.confirm(grant.end, sampled=grant.samples, accepted=accepted)
        if policy.publish is _AT_CONFIRM or (policy.publish is _AT_CHUNK and grant.phase is not _DECODE):
            state.memory.publish(request, request.confirmed, fence=state.fence())
    elif grant.samples:
        request.deliver_late(accepted)  # preempted while in flight: the tokens still count (V-18)
    if grant.samples and policy.account is not None:
        _tell_account(policy.account, request, 1 + accepted)
    return grant.samples


def _tell_account(account: Account, request: LiveRequest, tokens: int) -> None:
    for _ in range(tokens):
        account.emitted(request)


def finish(state: InstanceState, policy: PolicySet, request: LiveRequest, reason: str) -> Ended:
    """`end` a request that has emitted its last token."""
    return end(state, policy, request, _FINISH, outcome=_FINISHED, reason=reason)


def _fail(state: InstanceState, policy: PolicySet, planned: Planned, failure: str) -> tuple[Ended, ...]:
    live = [state.requests[grant.request] for grant in planned.plan.grants if grant.request in state.requests]
    state.memory.distrust()
    for request in live:
        state.memory.retract(request, request.confirmed)
    ended = tuple(end(state, policy, r, Event.FAIL, outcome=Outcome.FAILED, reason=failure) for r in live)
    release_batch(state)
    return ended
