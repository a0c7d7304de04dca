"""The lifecycle under kill, pause, loss and nonsense, with a real broker, dispatch and Celery worker.

Times are scaled (`tests.chaos.stack.SCALED`): lease 2 s, heartbeat and reaper 0.4 s, redispatch after 2 s.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from django.db import connection, transaction

from controlplane.accounts.models import User
from controlplane.celery import app
from controlplane.evidence.selectors import artifacts, samples_after
from controlplane.fleet.models import Worker
from controlplane.runs.models import Run
from controlplane.runs.services import request_cancel
from tests.chaos.stack import Stack, alive, wait_for

pytestmark = pytest.mark.stack

Queue = Callable[..., Run]
Until = Callable[..., Run]
ENDED = ("succeeded", "failed", "cancelled", "lost")


def send(stack: Stack, *args: object) -> None:
    """Put a message on the queue, as dispatch would."""
    with app.connection_for_write(f"{stack.redis_url}/0") as connection:
        app.send_task("controlplane.runs.tasks.execute", args, queue="headway.cpu", connection=connection)


def gone(pids: list[int]) -> bool:
    return bool(pids) and not any(alive(pid) for pid in pids)


def test_a_run_is_played_and_everything_it_handed_in_is_stored(stack: Stack, queue: Queue, until: Until) -> None:
    run = until(queue("quick"), *ENDED)
    assert (run.state, run.summary, run.done) == ("succeeded", {"arm": "quick"}, 5)
    assert [row["seq"] for row in samples_after(run=run, attempt=1, seq=0)] == [1, 2, 3, 4, 5]
    assert [(s.number, s.file.read()) for s in run.segments.all()] == [(1, b'{"n": 1}\n'), (2, b'{"n": 2}\n')]
    assert [a.file.name for a in artifacts(run=run)] == [f"runs/{run.pk}/1/summary.json"]
    after = [transition.after for transition in run.transitions.all()]
    assert after in (
        ["queued", "dispatched", "starting", "running", "finalising", "succeeded"],
        ["queued", "starting", "running", "finalising", "succeeded"],  # claimed before dispatch marked it
    )
    wait_for(lambda: not list((stack.home / "scratch").glob("run_*")), within_s=3)


def test_no_process_of_the_control_plane_ever_loads_torch(stack: Stack, queue: Queue, until: Until) -> None:
    until(queue("quick"), *ENDED)
    pids = [stack.process("dispatch").pid, stack.process("worker").pid, *stack.children("worker")]
    for pid in pids:
        maps = Path(f"/proc/{pid}/maps").read_text()
        assert "python" in maps  # it is that process, still alive
        assert "torch" not in maps


def test_the_worker_registers_and_beats(stack: Stack) -> None:
    wait_for(lambda: Worker.objects.filter(name="worker@test").exists(), within_s=5)
    worker = Worker.objects.get(name="worker@test")
    assert (worker.pid, worker.status()) == (stack.process("worker").pid, "ready")
    assert worker.device.endswith("/cpu:0")
    seen = worker.heartbeat_at
    wait_for(lambda: Worker.objects.get(name="worker@test").heartbeat_at > seen, within_s=3)


@pytest.mark.parametrize(
    ("arm", "reason"),
    [
        ("garbage", "the run printed something that is no message"),
        ("garbage", "Loading checkpoint shards: 100%"),
        ("crash", "ended without a result (exit status 1): CUDA error: out of memory"),
        ("silent", "ended without a result (exit status 0): it printed no error"),
    ],
)
def test_a_run_that_breaks_the_protocol_fails_with_the_reason(
    queue: Queue, until: Until, arm: str, reason: str
) -> None:
    run = until(queue(arm), *ENDED)
    assert run.state == "failed"
    assert reason in run.reason
    assert run.attempt == 1, "a failure is the run's own and is not repeated"


def test_a_child_left_behind_ends_with_its_run(stack: Stack, queue: Queue, until: Until) -> None:
    run = until(queue("orphaning"), *ENDED)
    assert run.state == "succeeded"
    wait_for(lambda: gone(stack.run_pids(run.pk)), within_s=3)


def test_kill_of_the_workers_main_process(stack: Stack, queue: Queue, until: Until) -> None:
    run = until(queue("slow"), "running")
    pids, executing = stack.run_pids(run.pk), stack.children("worker")
    stack.kill("worker")
    until(run, "queued", "dispatched", attempt=2, within_s=5)
    assert run.attempts.get(number=1).outcome == "released", "given back at once, not found by the reaper"
    wait_for(lambda: gone([*pids, *executing]), within_s=5)
    stack.start_worker()
    until(run, "running", attempt=2, within_s=15)


def test_kill_of_the_workers_whole_group(stack: Stack, queue: Queue, until: Until) -> None:
    run = until(queue("stubborn"), "running")
    wait_for(lambda: len(stack.run_pids(run.pk)) == 2, within_s=5)
    pids = stack.run_pids(run.pk)
    stack.kill_group("worker")
    until(run, "queued", "dispatched", attempt=2, within_s=6)
    assert "stopped renewing its lease" in run.attempts.get(number=1).reason
    wait_for(lambda: gone(pids), within_s=5)
    stack.start_worker()
    until(run, "running", attempt=2, within_s=15)


def test_an_orderly_stop_gives_the_run_back_unharmed(stack: Stack, queue: Queue, until: Until) -> None:
    run = until(queue("slow", max_attempts=1), "running")
    stack.process("worker").send_signal(signal.SIGTERM)
    stack.process("worker").wait(timeout=15)
    run.refresh_from_db()
    assert (run.state in ("queued", "dispatched"), run.attempt) == (True, 2)
    assert run.attempts.get(number=1).outcome == "released"
    assert gone(stack.run_pids(run.pk))


def test_the_broker_comes_back_empty_and_every_queued_run_is_sent_again(
    stack: Stack, queue: Queue, until: Until
) -> None:
    stack.kill_group("worker")
    runs = [queue("quick") for _ in range(4)]
    until(runs[0], "dispatched")
    stack.kill("broker")
    stack.start_broker()
    stack.start_worker()
    for run in runs:
        assert until(run, *ENDED, within_s=20).state == "succeeded"


def test_the_broker_goes_away_and_comes_back_empty_under_a_running_run(
    stack: Stack, queue: Queue, until: Until
) -> None:
    first, second = queue("short"), queue("quick")
    until(first, "running")
    stack.kill("broker")
    stack.start_broker()
    assert until(first, *ENDED, within_s=15).state == "succeeded"
    assert first.attempt == 1, "a run does not need the broker"
    assert until(second, *ENDED, within_s=20).state == "succeeded"


def test_cancel_of_a_running_run_ends_it_and_its_children(
    stack: Stack, queue: Queue, until: Until, owner: User
) -> None:
    run = until(queue("stubborn"), "running")
    wait_for(lambda: len(stack.run_pids(run.pk)) == 2, within_s=5)
    pids = stack.run_pids(run.pk)
    request_cancel(run=run, user=owner)
    assert until(run, *ENDED, within_s=5).state == "cancelled"
    assert gone(pids)


def test_a_polite_run_is_cancelled_with_what_it_measured(queue: Queue, until: Until, owner: User) -> None:
    run = until(queue("slow"), "running")
    wait_for(lambda: samples_after(run=run, attempt=1, seq=0), within_s=5)
    request_cancel(run=run, user=owner)
    assert until(run, *ENDED, within_s=5).reason == "stopped on request"
    assert (run.state, run.summary) == ("cancelled", None)
    assert samples_after(run=run, attempt=1, seq=0)


def test_a_worker_paused_beyond_its_lease_is_fenced_when_it_wakes(stack: Stack, queue: Queue, until: Until) -> None:
    run = until(queue("short"), "running")
    first = stack.run_pids(run.pk)
    stack.signal_group("worker", signal.SIGSTOP)
    for pid in first:
        os.kill(pid, signal.SIGSTOP)
    stack.start_worker("second", index=1)
    until(run, "running", *ENDED, attempt=2, within_s=15)
    stack.signal_group("worker", signal.SIGCONT)
    for pid in first:
        os.kill(pid, signal.SIGCONT)
    assert until(run, *ENDED, attempt=2, within_s=15).state == "succeeded"
    wait_for(lambda: gone(first), within_s=5)
    assert run.attempts.get(number=1).outcome == "lost"
    assert run.attempts.get(number=2).outcome == "succeeded"
    assert {s["t_s"] for s in samples_after(run=run, attempt=2, seq=0)}
    assert run.attempt == 2
    assert not artifacts(run=run, attempt=1).exists(), "the fenced attempt stored nothing more"


@contextlib.contextmanager
def locked_database() -> Iterator[None]:
    """Nobody else can write as long as the context lasts."""
    with transaction.atomic():
        Worker.objects.filter(name="nobody").update(draining=True)
        yield


@pytest.mark.skipif(connection.vendor != "sqlite", reason="other databases lock rows, not everything")
def test_a_database_that_is_locked_for_less_than_the_lease_costs_nothing(queue: Queue, until: Until) -> None:
    run = until(queue("short"), "running")
    with locked_database():
        time.sleep(1.0)
    assert until(run, *ENDED, within_s=15).state == "succeeded"
    assert (run.attempt, run.done) == (1, len(samples_after(run=run, attempt=1, seq=0)))


@pytest.mark.skipif(connection.vendor != "sqlite", reason="other databases lock rows, not everything")
def test_a_worker_that_cannot_reach_the_database_for_its_lease_lets_go(
    stack: Stack, queue: Queue, until: Until
) -> None:
    run = until(queue("stubborn"), "running")
    wait_for(lambda: len(stack.run_pids(run.pk)) == 2, within_s=5)
    pids = stack.run_pids(run.pk)
    with locked_database():
        wait_for(lambda: gone(pids), within_s=5)
    until(run, "running", attempt=2, within_s=15)
    assert "stopped renewing its lease" in run.attempts.get(number=1).reason


def test_poisoned_messages_are_dropped_and_the_queue_goes_on(stack: Stack, queue: Queue, until: Until) -> None:
    send(stack, "run_that_never_was", 1)
    send(stack, "wrong", "arguments", "entirely")
    send(stack, {"run": 1}, "x")
    with app.connection_for_write(f"{stack.redis_url}/0") as connection:
        app.send_task("no.such.task", (), queue="headway.cpu", connection=connection)
    assert until(queue("quick"), *ENDED, within_s=15).state == "succeeded"
    assert stack.running("worker")


@pytest.mark.parametrize("junk", [b"\x80\x04not json", b"{}"])
def test_junk_that_no_sender_of_ours_wrote_costs_a_restart_at_most(
    stack: Stack, queue: Queue, until: Until, junk: bytes
) -> None:
    """Celery's Redis transport ends the worker over it; it is off the queue then, so the restarted worker goes on."""
    with redis.Redis(port=stack.port) as client:
        client.lpush("headway.cpu", junk)
    run = queue("quick")
    with contextlib.suppress(TimeoutError):
        wait_for(lambda: not stack.running("worker"), within_s=5)
        stack.start_worker()
    assert until(run, *ENDED, within_s=15).state == "succeeded"


def test_a_message_delivered_many_times_makes_one_attempt(stack: Stack, queue: Queue, until: Until) -> None:
    run = queue("short")
    for _ in range(5):
        send(stack, run.pk, 1)
    until(run, "running")
    for _ in range(5):
        send(stack, run.pk, 1)
    assert until(run, *ENDED, within_s=15).state == "succeeded"
    after = until(queue("quick"), *ENDED, within_s=10)  # every duplicate was taken off the queue before
    assert after.state == "succeeded"
    assert (run.attempt, run.attempts.count()) == (1, 1)
    assert run.transitions.filter(after="starting").count() == 1
