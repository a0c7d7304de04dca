"""The lifecycle as a state machine: workers, people, dispatch and reaper in any order, with crashes between any steps.

After every step: at most one attempt is live and it is the run's current one; a terminal state is left only by a
person's retry; a device holds at most one run; every transition is a listed one; a waiting run has its message.
Messages are only ever copied and leases only ever remembered, so anything stale may come back at any time.
"""

from datetime import timedelta

from django.utils import timezone
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as check

from controlplane.accounts.models import User
from controlplane.errors import ConflictError, FencedError
from controlplane.evidence.services import append_samples
from controlplane.runs.lifecycle import LEASED_STATES, TERMINAL_STATES, TRANSITIONS, WAITING_STATES, State
from controlplane.runs.models import Run
from controlplane.runs.services import (
    claim,
    dispatch_outbox,
    finish,
    force_close,
    queue_run,
    reap,
    record_state,
    release,
    renew_lease,
    request_cancel,
    retry_run,
)

RUNS = 2
WORKERS = ("w0", "w1")
STEPS = ("beat", "report", "release", "succeeded", "failed", "cancelled")
any_number = st.integers(0, 63)


class Lifecycle(RuleBasedStateMachine):
    """Two workers with one device each, two runs of at most three automatic attempts."""

    @initialize()
    def begin(self) -> None:
        Run.objects.all().delete()  # of the machine's last life: examples share one transaction
        self.person, _ = User.objects.get_or_create(username="olga")
        common = {"owner": self.person, "job": {}, "device_kind": "cpu", "plan": None}
        self.ids = [queue_run(title=f"r{n}", place=n, **common).pk for n in range(RUNS)]  # type: ignore[arg-type]
        self.messages: list[tuple[str, int]] = []
        self.held: list[tuple[str, int, str]] = []  # what workers believe they hold; they may be wrong
        self.ended: dict[str, tuple[str, int]] = {}
        self.dispatch(late=False)
        self.deliver(0, WORKERS[0], crash=False)

    @rule(late=st.booleans())
    def dispatch(self, late: bool) -> None:
        now = timezone.now() + timedelta(minutes=late)
        dispatch_outbox(now, send=lambda run: self.messages.append((run.pk, run.attempt)))

    @precondition(lambda self: self.messages)
    @rule(which=any_number, worker=st.sampled_from(WORKERS), crash=st.sampled_from([False, False, True]))
    def deliver(self, which: int, worker: str, crash: bool) -> None:
        """A worker takes any message ever sent; it may die right after claiming."""
        run_id, attempt = self.messages[which % len(self.messages)]
        before = Run.objects.get(pk=run_id)
        taken = claim(run_id=run_id, attempt=attempt, worker=worker, device=f"host/{worker}")
        assert taken is None or (before.state in WAITING_STATES and before.attempt == attempt)
        if taken and not crash:
            self.held.append((run_id, attempt, worker))

    @precondition(lambda self: self.held)
    @rule(which=any_number, what=st.sampled_from(STEPS))
    def pause_beyond_the_lease(self, which: int, what: str) -> None:
        """A worker stops, the run goes to the other one, and the first wakes and goes on as if nothing had been."""
        which %= len(self.held)
        run_id, attempt, worker = self.held[which]
        mine = Run.objects.filter(pk=run_id, attempt=attempt, state__in=LEASED_STATES)
        if mine.update(lease_expires_at=timezone.now() - timedelta(seconds=1)):
            reap(timezone.now())
            self.messages.append((run_id, attempt + 1))
            self.deliver(len(self.messages) - 1, WORKERS[1 - WORKERS.index(worker)], crash=False)
            self.worker_step(which, what)

    @precondition(lambda self: self.held)
    @rule(which=any_number, what=st.sampled_from(STEPS))
    def worker_step(self, which: int, what: str) -> None:
        run_id, attempt, worker = self.held[which % len(self.held)]
        before = Run.objects.get(pk=run_id)
        current = before.attempt == attempt and before.state in LEASED_STATES
        if what == "beat":
            assert renew_lease(run_id=run_id, attempt=attempt, worker=worker).still_mine == current
        elif what == "report":
            assert self.report(run_id, attempt) == current
        elif what == "release":
            assert release(run_id=run_id, attempt=attempt, reason="stopping") == current
        else:
            assert finish(run_id=run_id, attempt=attempt, outcome=State(what), summary={}) == current
        if not current:
            after = Run.objects.get(pk=run_id)
            assert (after.state, after.attempt, after.summary) == (before.state, before.attempt, before.summary)

    def report(self, run_id: str, attempt: int) -> bool:
        """Whether samples and a state were taken."""
        try:
            append_samples(run_id=run_id, attempt=attempt, samples=[(1, {}), (2, {})])
            if Run.objects.get(pk=run_id).state == State.STARTING:
                record_state(run_id=run_id, attempt=attempt, state=State.RUNNING)
        except FencedError:
            return False
        return True

    @precondition(lambda self: len(self.held) > 1)
    @rule(minutes=st.integers(0, 1))
    def reaper(self, minutes: int) -> None:
        reap(timezone.now() + timedelta(minutes=minutes))

    @precondition(lambda self: len(self.held) > 1)
    @rule(number=st.integers(0, RUNS - 1), what=st.sampled_from(["cancel", "close", "retry"]))
    def person_step(self, number: int, what: str) -> None:
        run = Run.objects.get(pk=self.ids[number])
        before = State(run.state)
        allowed = {
            "cancel": before not in TERMINAL_STATES or before == State.CANCELLED,
            "close": before in LEASED_STATES,
            "retry": before in (State.FAILED, State.CANCELLED, State.LOST),
        }[what]
        step = {"cancel": request_cancel, "close": force_close, "retry": retry_run}[what]
        try:
            step(run=run, user=self.person)
        except ConflictError:
            # Cancelled by its worker without anybody's request: there is nothing left to ask for.
            assert not allowed or (what == "cancel" and before == State.CANCELLED)
            return
        assert allowed
        if what == "retry":
            self.ended.pop(run.pk, None)

    @invariant()
    def the_laws_hold(self) -> None:
        devices: list[str] = []
        runs = Run.objects.filter(pk__in=getattr(self, "ids", []))
        for run in runs.prefetch_related("attempts", "outbox", "transitions"):
            self.terminal_states_absorb(run)
            live = [attempt.number for attempt in run.attempts.all() if attempt.ended_at is None]
            assert live == ([run.attempt] if run.state in LEASED_STATES else [])
            assert bool(run.lease_device) == (run.state in LEASED_STATES)
            devices += [run.lease_device] if run.lease_device else []
            if run.state in WAITING_STATES:
                assert [row.attempt for row in run.outbox.all()].count(run.attempt) == 1
            first, *others = [(row.before, row.after) for row in run.transitions.all()]
            assert first == ("", State.QUEUED)
            assert all(after in TRANSITIONS[State(before)] for before, after in others)
        assert len(devices) == len(set(devices))

    def terminal_states_absorb(self, run: Run) -> None:
        if run.pk in self.ended:
            assert (run.state, run.attempt) == self.ended[run.pk]
        if run.state in TERMINAL_STATES:
            self.ended[run.pk] = (run.state, run.attempt)


class LifecycleTest(TestCase):
    def test_the_laws_hold_in_any_order(self) -> None:
        slow = [HealthCheck.too_slow, HealthCheck.filter_too_much]
        check(
            Lifecycle,
            settings=settings(max_examples=40, stateful_step_count=15, suppress_health_check=slow),
        )
