"""The embedded stack as processes: it starts, survives deaths, stops whole, and recovers after a crash."""

import http.client
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from controlplane.embedded import guardian
from tests.stack.conftest import Stack, command, wait_for

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

Start = Callable[[], Stack]


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/login/")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def test_starts_serves_and_stops_whole(start: Start, home: Path) -> None:
    """Ctrl-C leaves no process, no run folder and a home that only its owner can read."""
    stack = start().wait_ready()
    assert _answers(stack.port)
    assert f"http://127.0.0.1:{stack.port}/sign-in/" in stack.said()
    assert len(stack.alive()) == 4  # valkey, web, dispatch, one worker
    assert stat.S_IMODE((home / "secret_key").stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700

    assert stack.stop() == 0
    assert stack.alive() == []
    assert not (home / "run").exists()
    assert "Everything is stopped" in stack.said()


def test_dead_children_are_started_again(start: Start) -> None:
    """kill -9 of the queue server and of web: both come back, and the dashboard answers."""
    stack = start().wait_ready()
    groups = list(stack.groups)
    for pgid in groups[:2]:
        os.kill(pgid, signal.SIGKILL)
    wait_for(lambda: stack.said().count("starting it again") == 2, "both are noticed")
    wait_for(lambda: _answers(stack.port), "web answers again")
    wait_for(lambda: len(stack.registered()) == 4 and not set(groups[:2]) & set(stack.registered()), "new groups")
    assert stack.process.poll() is None
    stack.groups = stack.registered()
    assert stack.stop() == 0
    assert stack.alive() == []


def test_kill_9_of_the_supervisor_leaves_nothing_and_the_next_start_recovers(start: Start, home: Path) -> None:
    stack = start().wait_ready()
    # A run's process group, as a worker task registers it: it has no link to the supervisor but the guardian.
    run = os.posix_spawn("/bin/sleep", ["sleep", "600"], os.environ, setsid=True)
    (folder,) = (home / "run").iterdir()
    os.environ[guardian.VARIABLE] = str(folder / "guardian")
    try:
        guardian.register_group(run)
        wait_for(lambda: run in stack.registered(), "the guardian knows the run")
    finally:
        del os.environ[guardian.VARIABLE]
    (home / "scratch" / "run_half").mkdir()
    (home / "scratch" / "run_half" / "segment.part").write_text("half")

    stack.process.kill()
    stack.process.wait()
    wait_for(lambda: os.waitpid(run, os.WNOHANG)[0] == run, "the run ended")
    wait_for(lambda: stack.alive() == [], "every group ended")

    second = start().wait_ready()
    assert _answers(second.port)
    assert list((home / "scratch").iterdir()) == []
    assert second.stop() == 0


def test_a_second_supervisor_and_a_taken_port_are_refused_in_one_line(start: Start, home: Path, tmp_path: Path) -> None:
    stack = start().wait_ready()
    second = command("--port", str(stack.port), home=home)
    assert second.returncode == 1
    assert second.stderr == (
        f"headway: Headway already runs in {home} (pid {stack.process.pid}, http://127.0.0.1:{stack.port}); "
        "stop it first, or set HEADWAY_HOME\n"
    )
    elsewhere = command("--port", str(stack.port), home=tmp_path / "other")
    assert elsewhere.returncode == 1
    assert elsewhere.stderr == (
        f"headway: port {stack.port} is taken by another program; choose another: PORT={stack.port + 1}\n"
    )
    assert stack.stop() == 0


def test_a_home_that_cannot_be_made_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = command(home=tmp_path / "file" / "home")
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert "cannot write in" in refused.stderr and "HEADWAY_HOME" in refused.stderr


def test_a_damaged_queue_file_is_set_aside(start: Start, home: Path) -> None:
    """The database owns run state, so a queue that cannot be read costs nothing."""
    assert start().wait_ready().stop() == 0
    for file in (home / "valkey" / "appendonlydir").iterdir():
        if file.suffix == ".aof" and ".incr" in file.name:
            file.write_bytes(b"*3\r\n$3\r\nSET\r\nnot a length\r\n" * 4)
    second = start().wait_ready()
    assert "damaged" in second.said()
    assert list(home.glob("valkey-damaged-*"))
    assert second.stop() == 0
