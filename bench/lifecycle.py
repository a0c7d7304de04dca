"""How fast a run's fate is settled when something dies, with the lease settings as shipped, beside what they are.

Real processes on loopback: broker, dispatch and one Celery worker, with a run program that only ticks. Each case is
measured from the blow to the moment the database tells the truth again.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import harness

if TYPE_CHECKING:
    from controlplane.runs.models import Run
    from tests.chaos.stack import Stack

JOB = {"policy": {"policy": "static"}, "target": {"torch": {"device": "cpu"}}, "tiers": {"default": {}}}
WORKLOAD = {
    "arrivals": {"constant": {"rate_rps": 10}},
    "lengths": {"prompt": {"fixed": 8}, "output": {"fixed": 4}},
    "requests": 20,
}
FULL_REPEATS = 5
QUEUED_RUNS = 3


class Bench:
    """A migrated installation in a scratch folder, with its processes up."""

    def __init__(self, stack: "Stack") -> None:
        from controlplane.accounts.models import User
        from controlplane.workloads.services import freeze

        self.stack = stack
        self.person = User.objects.create_user("bench")
        self.plan = freeze(spec=WORKLOAD, user=self.person)

    def queue(self, arm: str) -> "Run":
        """Queue a run that behaves as ``arm`` says (`tests/chaos/fake_run.py`)."""
        from controlplane.runs.services import queue_run

        job = {**JOB, "arm": arm}
        return queue_run(owner=self.person, title=arm, job=job, device_kind="cpu", plan=self.plan)

    def wait(self, run: "Run", *states: str, within_s: float = 60.0) -> None:
        """Until ``run`` is in one of ``states``."""
        from tests.chaos.stack import wait_for

        def reached() -> bool:
            run.refresh_from_db()
            return run.state in states

        wait_for(reached, within_s=within_s, every_s=0.02)

    def cancel_s(self) -> float:
        """From the request to no process of a deaf run with a child being left, and the run being cancelled."""
        from controlplane.runs.services import request_cancel
        from tests.chaos.stack import alive, wait_for

        self.stack.ensure()
        run = self.queue("stubborn")
        self.wait(run, "running")
        wait_for(lambda: len(self.stack.run_pids(run.pk)) == 2, within_s=10)
        pids = self.stack.run_pids(run.pk)
        began = time.monotonic()
        request_cancel(run=run, user=self.person)
        self.wait(run, "cancelled")
        wait_for(lambda: not any(map(alive, pids)), within_s=30, every_s=0.02)
        return time.monotonic() - began

    def worker_kill_recovery_s(self, kill: Callable[[str], None]) -> float:
        """From kill -9 of the worker to the run being queued again."""
        from controlplane.runs.services import request_cancel

        self.stack.ensure()
        run = self.queue("slow")
        self.wait(run, "running")
        began = time.monotonic()
        kill("worker")
        self.wait(run, "queued", "dispatched")
        taken = time.monotonic() - began
        request_cancel(run=run, user=self.person)
        return taken

    def redis_loss_redispatch_s(self) -> float:
        """From the broker's loss of everything to the claim of the last of the runs whose messages it held."""
        if self.stack.running("worker"):
            self.stack.kill_group("worker")
        runs = [self.queue("quick") for _ in range(QUEUED_RUNS)]
        self.wait(runs[0], "dispatched")
        began = time.monotonic()
        self.stack.kill("broker")
        self.stack.ensure()
        for run in runs:
            self.wait(run, "succeeded")
        return time.monotonic() - began


@contextmanager
def _installed() -> Iterator[Bench]:
    from tests.chaos.stack import Stack

    with tempfile.TemporaryDirectory(prefix="headway-bench-") as folder:
        home = Path(folder) / "home"
        url = f"sqlite:///{home / 'headway.sqlite3'}"
        stack = Stack(home, url, {})
        os.environ |= {"HEADWAY_HOME": str(home), "DATABASE_URL": url, "REDIS_URL": stack.redis_url}
        os.environ |= {"HEADWAY_DEBUG": "1", "DJANGO_SETTINGS_MODULE": "controlplane.settings"}
        os.environ.setdefault("HEADWAY_LOG_LEVEL", "ERROR")
        _migrate()
        try:
            stack.ensure()
            yield Bench(stack)
        finally:
            stack.close()


def _migrate() -> None:
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)


def _shipped() -> dict[str, float]:
    from django.conf import settings

    names = ("HEARTBEAT", "LEASE", "REAP_EVERY", "REDISPATCH_AFTER", "STOP_GRACE")
    return {f"{name.lower()}_s": getattr(settings, f"RUN_{name}").total_seconds() for name in names}


def _measure(repeats: int) -> dict[str, Any]:
    with _installed() as bench:
        cases: dict[str, Callable[[], float]] = {
            "cancel_s": bench.cancel_s,
            "worker_main_kill_recovery_s": lambda: bench.worker_kill_recovery_s(bench.stack.kill),
            "worker_kill_recovery_s": lambda: bench.worker_kill_recovery_s(bench.stack.kill_group),
            "redis_loss_redispatch_s": bench.redis_loss_redispatch_s,
        }
        figures: dict[str, Any] = {}
        for name, case in cases.items():
            harness.say(f"{name} ...")
            taken = [round(case(), 3) for _ in range(repeats)]
            figures[name] = statistics.median(taken)
            if repeats > 1:
                figures[f"{name.removesuffix('_s')}_max_s"] = max(taken)
        return {**figures, "settings": _shipped()}


def quick() -> dict[str, Any]:
    """Each case once."""
    return _measure(1)


def full() -> dict[str, Any]:
    """Each case five times: median and maximum."""
    return _measure(FULL_REPEATS)


if __name__ == "__main__":
    sys.exit(harness.main("lifecycle", quick=quick, full=full))
