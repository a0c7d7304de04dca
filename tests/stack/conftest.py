"""A supervisor of its own home and ports, with the waits of production scaled down, and nothing left behind."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controlplane.embedded import guardian

ROOT = Path(__file__).resolve().parent.parent.parent
START_LIMIT_S = 100.0
STOP_LIMIT_S = 40.0


def wait_for(condition: Callable[[], bool], what: str, limit_s: float = 20.0) -> None:
    """Poll until ``condition`` holds; fail naming ``what`` when it does not within the limit."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s:.0f} s: {what}"
        time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def command(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    """``manage.py up`` that is expected to end by itself."""
    argv = [sys.executable, "manage.py", "up", *arguments]
    return subprocess.run(
        argv, cwd=ROOT, env=environment(home), capture_output=True, text=True, timeout=START_LIMIT_S, check=False
    )


def environment(home: Path, **more: str) -> dict[str, str]:
    unwanted = ("HEADWAY_", "DJANGO_", "REDIS_URL", "DATABASE_URL", "SECRET_KEY")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    return kept | {"HEADWAY_HOME": str(home), "HEADWAY_DEVICE_KINDS": "cpu"} | more


class Stack:
    """A running supervisor and what it started; ``more`` are further variables of its environment."""

    def __init__(self, home: Path, **more: str) -> None:
        self.home = home
        self.more = more
        self.port = free_port()
        self.output = home.with_name(f"{home.name}-{self.port}.out")
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "up", "--port", str(self.port)],
                cwd=ROOT,
                env=environment(home, **more),
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.groups: dict[int, str] = {}

    def said(self) -> str:
        return self.output.read_text()

    def wait_ready(self) -> "Stack":
        def ready() -> bool:
            assert self.process.poll() is None, self.said()
            return "Ctrl-C stops everything" in self.said()

        wait_for(ready, "the stack is ready", START_LIMIT_S)
        self.groups = self.registered()
        return self

    def manage(self, *arguments: str) -> str:
        """What a management command prints that is given to this stack's database."""
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env=environment(self.home, **self.more),
            capture_output=True,
            text=True,
            timeout=START_LIMIT_S,
            check=True,
        )
        return done.stdout

    def registered(self) -> dict[int, str]:
        """Process groups that the guardian watches now."""
        (folder,) = (self.home / "run").iterdir()
        return guardian.read_registry(folder / "groups")

    def alive(self) -> list[int]:
        """Groups that were registered at the start and of which a process still runs."""
        return [pgid for pgid, started in self.groups.items() if guardian.signal_group(pgid, started, 0)]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(STOP_LIMIT_S)

    def clear(self) -> None:
        """Whatever a failed test left."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for folder in (self.home / "run").glob("*"):
            guardian.end_groups(guardian.read_registry(folder / "groups"), grace_s=1)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def start(home: Path) -> Iterator[Callable[[], Stack]]:
    """Starts a stack in the test's home."""
    started: list[Stack] = []

    def go() -> Stack:
        started.append(Stack(home))
        return started[-1]

    yield go
    for stack in started:
        stack.clear()
