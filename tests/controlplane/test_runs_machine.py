"""The lifecycle as a state machine: workers, people, dispatch and reaper in any order, with crashes between any steps.

Invariants after every step: at most one attempt is live and it is the run's current one; a terminal state is left only
by a person's retry; a device holds at most one run; every transition is a listed one; nobody is ever told that two
attempts were both successful.
"""

from datetime import timedelta
from typing import Any

from django.utils import timezone
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

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

RUNS = 3
WORKERS = ("w0", "w1")
Held = tuple[str, int, str]


class Lifecycle(RuleBasedStateMachine):
    """Two workers with one device each, three runs. Messages are only ever copied, so each may be delivered again."""

    messages: Bundle[tuple[str, int]] = Bundle("messages")
    held: Bundle[Held] = Bundle("held")  # what a worker believes it holds; it may be wrong

    @initialize()
    def begin(self) -> None:
        Run.objects.all().delete()  # of the machine's last life: examples share one transaction
        self.person, _ = User.objects.get_or_create(username="olga")
        runs = [
            queue_run(owner=self.person, title=f"r{n}", job={}, device_kind="cpu", plan=None, max_attempts=2, place=n)
            for n in range(RUNS)
        ]
        self.ids = [run.pk for run in runs]
        self.ended: dict[str, tuple[str, int]] = {}
        self.won: dict[str, int] = {}

    def run_of(self, number: int) -> Run:
        return Run.objects.get(pk=self.ids[number])

    @rule(target=messages, late=st.booleans())
    def dispatch(self, late: bool) -> Any:
        sent: list[tuple[str, int]] = []
        now = timezone.now() + timedelta(hours=late)
        dispatch_outbox(now, send=lambda run: sent.append((run.pk, run.attempt)))
        return multiple(*sent)

    @rule(target=held, message=messages, worker=st.sampled_from(WORKERS), crash=st.booleans())
    def deliver(self, message: tuple[str, int], worker: str, crash: bool) -> Any:
        """A worker takes a message, any number of times; it may die at once after claiming."""
        run_id, attempt = message
        taken = claim(run_id=run_id, attempt=attempt, worker=worker, device=f"host/{worker}")
        return multiple((run_id, attempt, worker)) if taken and not crash else multiple()

    @rule(target=held, lease=held)
    def pause_beyond_the_lease(self, lease: Held) -> Any:
        """The worker stops; the run goes to the other one. What the first believes stays in the bundle."""
        run_id, attempt, worker = lease
        mine = Run.objects.filter(pk=run_id, attempt=attempt, state__in=LEASED_STATES)
        if not mine.update(lease_expires_at=timezone.now() - timedelta(seconds=1)):
            return multiple()
        reap(timezone.now())
        run = Run.objects.get(pk=run_id)
        if run.state != State.QUEUED:
            return multiple()
        other = WORKERS[1 - WORKERS.index(worker)]
        assert claim(run_id=run_id, attempt=attempt, worker=worker, device=f"host/{worker}") is None
        taken = claim(run_id=run_id, attempt=run.attempt, worker=other, device=f"host/{other}")
        return multiple((run_id, run.attempt, other)) if taken else multiple()

    @rule(lease=held)
    def heartbeat(self, lease: Held) -> None:
        run_id, attempt, worker = lease
        mine = renew_lease(run_id=run_id, attempt=attempt, worker=worker).still_mine
        run = Run.objects.filter(pk=run_id).first()
        assert mine == (run is not None and run.attempt == attempt and run.state in LEASED_STATES)

    @rule(lease=held, state=st.sampled_from([State.RUNNING, State.FINALISING]), seq=st.integers(1, 3))
    def report(self, lease: Held, state: State, seq: int) -> None:
        run_id, attempt, _ = lease
        before = Run.objects.filter(pk=run_id).values().first()
        try:
            append_samples(run_id=run_id, attempt=attempt, samples=[(n, {}) for n in range(1, seq + 1)])
            current = Run.objects.get(pk=run_id)
            if state in TRANSITIONS[State(current.state)] or current.state == state:
                record_state(run_id=run_id, attempt=attempt, state=state)
        except FencedError:
            assert Run.objects.filter(pk=run_id).values().first() == before
            return
        assert Run.objects.get(pk=run_id).attempt == attempt

    @rule(lease=held, outcome=st.sampled_from([State.SUCCEEDED, State.FAILED, State.CANCELLED]))
    def end(self, lease: Held, outcome: State) -> None:
        run_id, attempt, _ = lease
        if finish(run_id=run_id, attempt=attempt, outcome=outcome, summary={}):
            assert Run.objects.get(pk=run_id).attempt == attempt
            if outcome is State.SUCCEEDED:
                assert run_id not in self.won, "two attempts of one run both succeeded"
                self.won[run_id] = attempt

    @rule(lease=consumes(held))
    def give_back(self, lease: Held) -> None:
        release(run_id=lease[0], attempt=lease[1], reason="stopping")

    @rule(later=st.booleans())
    def reaper(self, later: bool) -> None:
        reap(timezone.now() + timedelta(hours=later))

    @rule(number=st.integers(0, RUNS - 1))
    def cancel(self, number: int) -> None:
        run = self.run_of(number)
        ended = run.state in TERMINAL_STATES
        try:
            request_cancel(run=run, user=self.person)
        except ConflictError:
            assert ended
        else:
            assert run.state == State.CANCELLED or run.cancel_requested_at

    @rule(number=st.integers(0, RUNS - 1))
    def close_by_force(self, number: int) -> None:
        run = self.run_of(number)
        leased = run.state in LEASED_STATES
        try:
            force_close(run=run, user=self.person)
        except ConflictError:
            assert not leased
        else:
            assert run.state in (State.LOST, State.CANCELLED)

    @rule(number=st.integers(0, RUNS - 1))
    def retry(self, number: int) -> None:
        run = self.run_of(number)
        before = run.state
        try:
            retry_run(run=run, user=self.person)
        except ConflictError:
            assert before not in (State.FAILED, State.CANCELLED, State.LOST)
        else:
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
    def test_the_invariants_hold_in_any_order(self) -> None:
        run_state_machine_as_test(
            Lifecycle,
            settings=settings(
                max_examples=25,
                stateful_step_count=20,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
            ),
        )
