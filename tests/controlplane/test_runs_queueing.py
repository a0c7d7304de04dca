"""What people do with runs: queue, cancel, retry, force-close."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied

from controlplane.accounts.models import User
from controlplane.errors import ConflictError, QuotaError
from controlplane.runs import selectors
from controlplane.runs.lifecycle import LEASED_STATES, TERMINAL_STATES, WAITING_STATES, State
from controlplane.runs.models import Outbox, Run
from controlplane.runs.services import claim, finish, force_close, renew_lease, request_cancel, retry_run
from controlplane.runs.services.queueing import check_quota

MakeRun = Callable[..., Run]


class TestQueueRun:
    def test_it_writes_the_run_its_message_and_its_first_transition(self, make_run: MakeRun) -> None:
        run = make_run()
        assert (run.state, run.attempt) == (State.QUEUED, 1)
        assert run.outbox.get().attempt == 1
        assert [(t.before, t.after, t.actor) for t in run.transitions.all()] == [("", "queued", "olga")]

    def test_later_runs_come_later(self, make_run: MakeRun) -> None:
        first, second = make_run(), make_run()
        assert list(selectors.queue("cpu")) == [first, second]
        assert selectors.queue_position(second) == 1

    def test_one_person_may_not_fill_the_queue(self, make_run: MakeRun, owner: User, settings: Any) -> None:
        settings.RUN_QUEUE_LIMIT = 2
        make_run()
        check_quota(owner=owner, wanted=1)
        with pytest.raises(QuotaError, match="the limit is 2"):
            check_quota(owner=owner, wanted=2)


class TestRequestCancel:
    @pytest.mark.parametrize("state", WAITING_STATES)
    def test_a_waiting_run_is_cancelled_at_once(self, make_run: MakeRun, owner: User, state: State) -> None:
        run = request_cancel(run=make_run(state), user=owner)
        assert (run.state, run.reason) == (State.CANCELLED, "cancelled by olga")
        assert run.cancel_requested_by == owner
        assert claim(run_id=run.pk, attempt=1, worker="w", device="d") is None, "its message must find nothing"

    @pytest.mark.parametrize("state", LEASED_STATES)
    def test_a_leased_run_is_asked_and_its_worker_learns_of_it(
        self, make_run: MakeRun, owner: User, state: State
    ) -> None:
        run = request_cancel(run=make_run(state), user=owner)
        assert run.state == state
        assert renew_lease(run_id=run.pk, attempt=1, worker="w1").cancel_requested

    @pytest.mark.parametrize("state", [s for s in TERMINAL_STATES if s is not State.CANCELLED])
    def test_an_ended_run_cannot_be_cancelled(self, make_run: MakeRun, owner: User, state: State) -> None:
        with pytest.raises(ConflictError, match="already ended"):
            request_cancel(run=make_run(state), user=owner)

    def test_asking_twice_changes_nothing(self, make_run: MakeRun, owner: User) -> None:
        run = request_cancel(run=make_run(State.RUNNING), user=owner)
        asked = run.cancel_requested_at
        assert request_cancel(run=run, user=owner).cancel_requested_at == asked
        queued = request_cancel(run=make_run(), user=owner)
        assert request_cancel(run=queued, user=owner).state == State.CANCELLED
        assert queued.transitions.count() == 2

    def test_a_run_claimed_since_it_was_read_is_asked_instead(self, make_run: MakeRun, owner: User) -> None:
        stale = make_run()
        assert claim(run_id=stale.pk, attempt=1, worker="w1", device="d")
        run = request_cancel(run=stale, user=owner)
        assert run.state == State.STARTING
        assert run.cancel_requested_at

    def test_staff_may(self, make_run: MakeRun, staff: User) -> None:
        assert request_cancel(run=make_run(), user=staff).state == State.CANCELLED

    def test_a_teammate_and_an_outsider_may_not(
        self, make_run: MakeRun, teammate: User, outsider: AnonymousUser
    ) -> None:
        run = make_run()
        for person in (teammate, outsider):
            with pytest.raises(PermissionDenied):
                request_cancel(run=run, user=person)  # type: ignore[arg-type]
        run.refresh_from_db()
        assert run.state == State.QUEUED


class TestForceClose:
    @pytest.mark.parametrize("state", LEASED_STATES)
    def test_it_ends_a_leased_run_and_refuses_the_worker_from_then_on(
        self, make_run: MakeRun, owner: User, state: State
    ) -> None:
        run = force_close(run=make_run(state), user=owner)
        assert (run.state, run.lease_worker, run.lease_expires_at) == (State.LOST, "", None)
        assert run.finished_at
        assert not renew_lease(run_id=run.pk, attempt=1, worker="w1").still_mine
        assert not finish(run_id=run.pk, attempt=1, outcome=State.SUCCEEDED, summary={})
        assert run.attempts.get().outcome == "lost"

    def test_a_run_that_was_asked_to_cancel_ends_cancelled(self, make_run: MakeRun, owner: User) -> None:
        run = request_cancel(run=make_run(State.RUNNING), user=owner)
        assert force_close(run=run, user=owner).state == State.CANCELLED

    @pytest.mark.parametrize("state", [*WAITING_STATES, *TERMINAL_STATES])
    def test_any_other_run_is_refused(self, make_run: MakeRun, owner: User, state: State) -> None:
        with pytest.raises(ConflictError, match="only a run held by a worker"):
            force_close(run=make_run(state), user=owner)

    def test_a_teammate_and_an_outsider_may_not(
        self, make_run: MakeRun, teammate: User, outsider: AnonymousUser
    ) -> None:
        run = make_run(State.RUNNING)
        for person in (teammate, outsider):
            with pytest.raises(PermissionDenied):
                force_close(run=run, user=person)  # type: ignore[arg-type]


class TestRetryRun:
    @pytest.mark.parametrize("state", [State.FAILED, State.CANCELLED, State.LOST])
    def test_it_queues_a_new_attempt_and_keeps_the_old_one(self, make_run: MakeRun, owner: User, state: State) -> None:
        run = retry_run(run=make_run(state), user=owner)
        assert (run.state, run.attempt, run.finished_at, run.summary) == (State.QUEUED, 2, None, None)
        assert [row.attempt for row in Outbox.objects.filter(run=run).order_by("attempt")] == [1, 2]
        assert run.attempts.get().number == 1
        assert claim(run_id=run.pk, attempt=1, worker="w", device="d") is None, "the old message is void"
        assert claim(run_id=run.pk, attempt=2, worker="w", device="d")

    def test_a_request_to_cancel_does_not_outlive_a_retry(self, make_run: MakeRun, owner: User) -> None:
        run = request_cancel(run=make_run(), user=owner)
        assert retry_run(run=run, user=owner).cancel_requested_at is None

    def test_the_last_attempt_can_be_retried_by_a_person(self, make_run: MakeRun, owner: User) -> None:
        run = retry_run(run=make_run(State.FAILED, max_attempts=1), user=owner)
        assert (run.attempt, run.max_attempts) == (2, 2)

    @pytest.mark.parametrize("state", [*WAITING_STATES, *LEASED_STATES, State.SUCCEEDED])
    def test_any_other_run_is_refused(self, make_run: MakeRun, owner: User, state: State) -> None:
        with pytest.raises(ConflictError, match="only a failed, cancelled or lost run"):
            retry_run(run=make_run(state), user=owner)

    def test_a_teammate_and_an_outsider_may_not(
        self, make_run: MakeRun, teammate: User, outsider: AnonymousUser
    ) -> None:
        run = make_run(State.FAILED)
        for person in (teammate, outsider):
            with pytest.raises(PermissionDenied):
                retry_run(run=run, user=person)  # type: ignore[arg-type]


class TestVisibleTo:
    def test_everyone_signed_in_sees_runs_and_nobody_else(
        self, make_run: MakeRun, owner: User, teammate: User, outsider: AnonymousUser
    ) -> None:
        run = make_run()
        gone = User(username="gone", is_active=False)
        assert list(selectors.visible_to(owner)) == list(selectors.visible_to(teammate)) == [run]
        assert not selectors.visible_to(outsider).exists()
        assert not selectors.visible_to(gone).exists()

    def test_actions_follow_the_state(self, make_run: MakeRun, owner: User) -> None:
        assert selectors.actions(make_run()) == {"cancel": True, "force_close": False, "retry": False}
        running = make_run(State.RUNNING)
        assert selectors.actions(running) == {"cancel": True, "force_close": True, "retry": False}
        assert not selectors.actions(request_cancel(run=running, user=owner))["cancel"]
        assert selectors.actions(make_run(State.FAILED)) == {"cancel": False, "force_close": False, "retry": True}
        assert not any(selectors.actions(make_run(State.SUCCEEDED)).values())
