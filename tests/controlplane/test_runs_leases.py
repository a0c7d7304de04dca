"""Claim, renew, report, finish, release, reap and dispatch: each a conditional step, all fenced by attempt."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings as conf
from django.utils import timezone

from controlplane.accounts.models import User
from controlplane.errors import BrokerDownError, FencedError
from controlplane.fleet.services import mark_stopping, register_worker
from controlplane.runs.lifecycle import LEASED_STATES, TERMINAL_STATES, TRANSITIONS, State
from controlplane.runs.models import Outbox, Run
from controlplane.runs.services import (
    claim,
    dispatch_outbox,
    finish,
    reap,
    record_progress,
    record_state,
    release,
    renew_lease,
    request_cancel,
    retry_run,
)
from controlplane.runs.services.changes import change_state

MakeRun = Callable[..., Run]


def expire(run: Run) -> None:
    Run.objects.filter(pk=run.pk).update(lease_expires_at=timezone.now() - timedelta(seconds=1))


class TestChangeState:
    def test_every_transition_that_is_not_listed_is_refused(self, make_run: MakeRun) -> None:
        for before in State:
            for after in set(State) - TRANSITIONS[before]:
                with pytest.raises(ValueError, match="cannot go from"):
                    change_state(run=Run(state=before), to=after, actor="test")

    def test_a_run_that_moved_since_it_was_read_is_left_alone(self, make_run: MakeRun) -> None:
        stale = make_run()
        Run.objects.filter(pk=stale.pk).update(state=State.CANCELLED)
        assert not change_state(run=stale, to=State.DISPATCHED, actor="test")
        assert stale.transitions.count() == 1


class TestClaim:
    @pytest.mark.parametrize("state", [State.QUEUED, State.DISPATCHED])
    def test_the_first_claimant_gets_the_lease_and_the_others_nothing(self, make_run: MakeRun, state: State) -> None:
        run = make_run(state)
        mine = claim(run_id=run.pk, attempt=1, worker="w1", device="d1")
        assert mine is not None
        assert (mine.state, mine.lease_worker, mine.lease_device) == (State.STARTING, "w1", "d1")
        assert mine.lease_expires_at is not None
        assert mine.lease_expires_at - timezone.now() <= conf.RUN_LEASE
        assert claim(run_id=run.pk, attempt=1, worker="w2", device="d2") is None
        assert run.attempts.get().worker == "w1"

    @pytest.mark.parametrize("attempt", [0, 2])
    def test_a_message_of_another_attempt_is_void(self, make_run: MakeRun, attempt: int) -> None:
        assert claim(run_id=make_run().pk, attempt=attempt, worker="w", device="d") is None

    def test_an_unknown_run_is_void(self, db: None) -> None:
        assert claim(run_id="run_nothing", attempt=1, worker="w", device="d") is None

    @pytest.mark.parametrize("state", [*LEASED_STATES, *TERMINAL_STATES])
    def test_a_run_that_does_not_wait_is_void(self, make_run: MakeRun, state: State) -> None:
        assert claim(run_id=make_run(state).pk, attempt=1, worker="w", device="d") is None

    def test_a_device_holds_one_run_and_the_message_of_the_second_is_put_back(self, make_run: MakeRun) -> None:
        first, second = make_run(), make_run(State.DISPATCHED)
        assert claim(run_id=first.pk, attempt=1, worker="w", device="host/cpu:0")
        assert claim(run_id=second.pk, attempt=1, worker="w", device="host/cpu:0") is None
        second.refresh_from_db()
        assert (second.state, second.attempts.count()) == (State.QUEUED, 0)
        row = second.outbox.get()
        assert row.sent_at is None
        assert row.due_at > timezone.now()


class TestRenewLease:
    def test_it_extends_the_lease(self, make_run: MakeRun) -> None:
        run = make_run(State.RUNNING)
        expire(run)
        assert renew_lease(run_id=run.pk, attempt=1, worker="w1").still_mine
        run.refresh_from_db()
        assert run.lease_expires_at is not None
        assert run.lease_expires_at > timezone.now()

    def test_only_for_the_current_attempt_of_the_same_worker(self, make_run: MakeRun) -> None:
        run = make_run(State.RUNNING)
        assert not renew_lease(run_id=run.pk, attempt=2, worker="w1").still_mine
        assert not renew_lease(run_id=run.pk, attempt=1, worker="w2").still_mine

    def test_it_says_when_the_worker_shall_stop(self, make_run: MakeRun) -> None:
        run = make_run(State.RUNNING)
        register_worker(name="w1", host="h", pid=7, device_kind="cpu", device="d")
        assert not renew_lease(run_id=run.pk, attempt=1, worker="w1").worker_stopping
        mark_stopping(name="w1", pid=7)
        assert renew_lease(run_id=run.pk, attempt=1, worker="w1").worker_stopping


class TestReports:
    def test_states_follow_the_run_and_repeat_harmlessly(self, make_run: MakeRun) -> None:
        run = make_run(State.STARTING)
        for state in (State.STARTING, State.RUNNING, State.RUNNING, State.FINALISING):
            record_state(run_id=run.pk, attempt=1, state=state)
        after = [t.after for t in run.transitions.all()]
        assert after == ["queued", "starting", "running", "finalising"]

    def test_progress_is_kept(self, make_run: MakeRun) -> None:
        run = make_run(State.RUNNING)
        record_progress(run_id=run.pk, attempt=1, done=3, total=20, eta_s=1.5)
        run.refresh_from_db()
        assert (run.done, run.total, run.eta_s) == (3, 20, 1.5)

    def test_an_old_attempt_is_fenced(self, make_run: MakeRun, owner: User) -> None:
        run = retry_run(run=make_run(State.FAILED), user=owner)
        assert claim(run_id=run.pk, attempt=2, worker="w2", device="d2")
        with pytest.raises(FencedError):
            record_state(run_id=run.pk, attempt=1, state=State.RUNNING)
        with pytest.raises(FencedError):
            record_progress(run_id=run.pk, attempt=1, done=1, total=1, eta_s=None)
        assert not finish(run_id=run.pk, attempt=1, outcome=State.SUCCEEDED, summary={})
        assert not release(run_id=run.pk, attempt=1, reason="x")
        run.refresh_from_db()
        assert (run.state, run.attempt) == (State.STARTING, 2)


class TestFinish:
    @pytest.mark.parametrize("state", LEASED_STATES)
    @pytest.mark.parametrize("outcome", [State.SUCCEEDED, State.FAILED, State.CANCELLED])
    def test_it_ends_the_run_once_and_frees_the_device(self, make_run: MakeRun, state: State, outcome: State) -> None:
        run = make_run(state)
        done = {"run_id": run.pk, "attempt": 1, "outcome": outcome, "reason": "why", "log_tail": "log"}
        assert finish(**done, summary={"arm": "a"})  # type: ignore[arg-type]
        assert not finish(**done)  # type: ignore[arg-type]
        run.refresh_from_db()
        assert (run.state, run.reason, run.summary) == (outcome, "why", {"arm": "a"})
        assert (run.lease_device, run.lease_expires_at) == ("", None)
        row = run.attempts.get()
        assert (row.outcome, row.reason, row.log_tail) == (outcome, "why", "log")
        for before, after in run.transitions.values_list("before", "after")[1:]:
            assert after in TRANSITIONS[State(before)]

    def test_words_that_no_database_can_hold_do_not_keep_a_run_from_its_end(self, make_run: MakeRun) -> None:
        run = make_run(State.RUNNING)
        bad = "a\x00b\ud800"
        assert finish(run_id=run.pk, attempt=1, outcome=State.FAILED, reason=bad, log_tail=bad)
        run.refresh_from_db()
        assert run.reason == run.attempts.get().log_tail == "a\ufffdb?"

    def test_only_an_end_is_an_end(self, make_run: MakeRun) -> None:
        with pytest.raises(ValueError, match="not an end"):
            finish(run_id=make_run(State.RUNNING).pk, attempt=1, outcome=State.QUEUED)


class TestRelease:
    def test_it_queues_again_without_using_up_an_attempt(self, make_run: MakeRun) -> None:
        run = make_run(State.RUNNING, max_attempts=1)
        assert release(run_id=run.pk, attempt=1, reason="its worker stops")
        run.refresh_from_db()
        assert (run.state, run.attempt, run.max_attempts) == (State.QUEUED, 2, 2)
        assert run.attempts.get().outcome == "released"
        assert Outbox.objects.filter(run=run, attempt=2).exists()


class TestReap:
    @pytest.mark.parametrize("state", LEASED_STATES)
    def test_an_expired_lease_is_queued_again_with_its_reason(self, make_run: MakeRun, state: State) -> None:
        run = make_run(state)
        expire(run)
        assert [r.pk for r in reap(timezone.now())] == [run.pk]
        run.refresh_from_db()
        assert (run.state, run.attempt) == (State.QUEUED, 2)
        assert run.reason == "w1 stopped renewing its lease; queued again as attempt 2 of 3"
        assert run.attempts.get().outcome == "lost"
        assert Outbox.objects.filter(run=run, attempt=2, sent_at=None).exists()

    def test_the_last_attempt_is_lost(self, make_run: MakeRun) -> None:
        run = make_run(State.RUNNING, max_attempts=1)
        expire(run)
        reap(timezone.now())
        run.refresh_from_db()
        assert (run.state, run.reason) == (State.LOST, "w1 stopped renewing its lease in attempt 1 of 1")

    def test_one_that_was_asked_to_cancel_is_cancelled(self, make_run: MakeRun, owner: User) -> None:
        run = request_cancel(run=make_run(State.RUNNING), user=owner)
        expire(run)
        reap(timezone.now())
        run.refresh_from_db()
        assert run.state == State.CANCELLED

    def test_a_lease_without_expiry_counts_from_its_start(self, make_run: MakeRun) -> None:
        run = make_run(State.RUNNING)
        Run.objects.filter(pk=run.pk).update(lease_expires_at=None)
        assert reap(timezone.now()) == []
        assert len(reap(timezone.now() + conf.RUN_LEASE + timedelta(seconds=1))) == 1

    def test_a_live_lease_and_waiting_or_ended_runs_are_left_alone(self, make_run: MakeRun) -> None:
        for state in State:
            make_run(state)
        assert reap(timezone.now()) == []

    def test_a_lease_renewed_since_it_was_read_is_left_alone(
        self, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = make_run(State.RUNNING)
        expire(run)
        from controlplane.runs.services import reaping

        one = reaping._reap_one

        def renewed_first(seen: Run) -> bool:
            renew_lease(run_id=run.pk, attempt=1, worker="w1")
            return one(seen)

        monkeypatch.setattr(reaping, "_reap_one", renewed_first)
        assert reap(timezone.now()) == []
        run.refresh_from_db()
        assert run.state == State.RUNNING


class TestDispatchOutbox:
    def sent(self, now: Any = None, fail: tuple[str, ...] = ()) -> list[str]:
        out: list[str] = []

        def send(run: Run) -> None:
            if run.pk in fail:
                raise RuntimeError("no")
            out.append(run.pk)

        dispatch_outbox(now or timezone.now(), send=send)
        return out

    def test_it_sends_in_order_of_place_and_no_more_than_allowed_ahead(self, make_run: MakeRun, settings: Any) -> None:
        settings.RUN_DISPATCH_AHEAD = 2
        late, early, middle = make_run(place=9), make_run(place=1), make_run(place=5)
        assert self.sent() == [early.pk, middle.pk]
        assert self.sent() == []
        assert claim(run_id=early.pk, attempt=1, worker="w", device="d")
        assert self.sent() == [late.pk]

    def test_device_kinds_do_not_wait_for_each_other(self, make_run: MakeRun, settings: Any) -> None:
        settings.RUN_DISPATCH_AHEAD = 1
        runs = [make_run(), make_run(device_kind="cuda")]
        assert sorted(self.sent()) == sorted(run.pk for run in runs)

    def test_a_message_nobody_claimed_is_sent_again_until_somebody_does(self, make_run: MakeRun) -> None:
        run = make_run()
        now = timezone.now()
        assert self.sent(now) == [run.pk]
        assert self.sent(now + conf.RUN_REDISPATCH_AFTER / 2) == []
        later = now + conf.RUN_REDISPATCH_AFTER + timedelta(seconds=1)
        assert self.sent(later) == [run.pk]
        run.refresh_from_db()
        assert (run.state, run.outbox.get().sends) == (State.DISPATCHED, 2)
        claim(run_id=run.pk, attempt=1, worker="w", device="d")
        assert self.sent(later + conf.RUN_REDISPATCH_AFTER * 3) == []

    def test_one_message_that_cannot_be_sent_neither_blocks_nor_loops(self, make_run: MakeRun) -> None:
        bad, good = make_run(place=1), make_run(place=2)
        assert self.sent(fail=(bad.pk,)) == [good.pk]
        row = bad.outbox.get()
        assert row.due_at > timezone.now()
        assert self.sent() == []
        assert self.sent(row.due_at) == [bad.pk]

    def test_a_dead_broker_is_nobodys_fault(self, make_run: MakeRun) -> None:
        run = make_run()

        def send(run: Run) -> None:
            raise BrokerDownError("gone")

        with pytest.raises(BrokerDownError):
            dispatch_outbox(timezone.now(), send=send)
        assert self.sent() == [run.pk]

    def test_a_run_claimed_before_its_message_was_marked_stays_claimed(self, make_run: MakeRun) -> None:
        run = make_run()

        def claimed_at_once(run: Run) -> None:
            assert claim(run_id=run.pk, attempt=1, worker="w", device="d")

        dispatch_outbox(timezone.now(), send=claimed_at_once)
        run.refresh_from_db()
        assert run.state == State.STARTING

    def test_a_cancelled_run_is_not_sent(self, make_run: MakeRun, owner: User) -> None:
        request_cancel(run=make_run(), user=owner)
        assert self.sent() == []
