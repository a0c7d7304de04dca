"""The parts of the embedded stack that need no running servers."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from controlplane.embedded import guardian, home, logs, programs
from controlplane.embedded.child import Child, Program
from controlplane.embedded.home import StartError

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def place(tmp_path: Path) -> home.Home:
    found = home.locate({"HEADWAY_HOME": str(tmp_path / "home")}, tmp_path)
    home.make(found)
    return found


def _sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)


def test_register_group_does_nothing_outside_the_stack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(guardian.VARIABLE, raising=False)
    guardian.register_group(os.getpgrp())
    monkeypatch.setenv(guardian.VARIABLE, str(tmp_path / "no such fifo"))
    guardian.register_group(os.getpgrp())


def test_a_recycled_number_is_never_signalled() -> None:
    """A registered group whose leader's start time differs is another process that got the same number."""
    process = _sleeper()
    try:
        assert guardian.signal_group(process.pid, "1", signal.SIGKILL) is False
        assert process.poll() is None
        assert guardian.signal_group(process.pid, guardian.start_time(process.pid) or "", signal.SIGKILL) is True
        assert process.wait(10) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()


def test_groups_that_ignore_sigterm_are_killed() -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ok', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ok\n"
    guardian.end_groups({process.pid: guardian.start_time(process.pid) or "?"}, grace_s=0.3)
    assert process.wait(10) == -signal.SIGKILL


def test_a_torn_registry_line_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "groups").write_text("12 34\n\nnonsense\n56 78\n9")
    assert guardian.read_registry(tmp_path / "groups") == {12: "34", 56: "78"}


def test_guardian_ends_registered_groups_when_its_pipe_closes(place: home.Home) -> None:
    """And only those: one group is taken back before the pipe closes."""
    place.run.mkdir(parents=True)
    os.mkfifo(place.fifo)
    argv = [sys.executable, "-m", "controlplane.embedded.guardian", str(place.fifo), str(place.registry)]
    watcher = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert watcher.stdout is not None and watcher.stdin is not None
    assert watcher.stdout.readline() == b"ready\n"
    kept, ended = _sleeper(), _sleeper()
    try:
        os.environ[guardian.VARIABLE] = str(place.fifo)
        guardian.register_group(kept.pid)
        guardian.register_group(ended.pid)
        guardian.unregister_group(kept.pid)
        watcher.send_signal(signal.SIGTERM)  # it ignores the terminal's signals
        watcher.stdin.close()
        assert ended.wait(15) == -signal.SIGTERM
        assert watcher.wait(15) == 0
        assert kept.poll() is None
        assert guardian.read_registry(place.registry) == {}
    finally:
        del os.environ[guardian.VARIABLE]
        for process in (kept, ended, watcher):
            process.kill()
            process.wait()


def test_recover_ends_orphans_and_clears_only_the_home_s_own_scratch(place: home.Home) -> None:
    orphan = _sleeper()
    threading.Thread(target=orphan.wait).start()  # as init would: an unreaped child still counts as a group
    earlier = place.root / "run" / "1-1"
    earlier.mkdir(parents=True)
    started = guardian.start_time(orphan.pid)
    (earlier / "groups").write_text(f"{orphan.pid} {started}\n{os.getpid()} 1\n")
    (place.scratch / "keep").write_text("")
    assert home.recover(place, own_scratch=False) == 1
    assert orphan.wait(10) == -signal.SIGTERM
    assert not earlier.exists() and place.run.is_dir()
    assert (place.scratch / "keep").exists()
    home.clear(place)
    assert home.recover(place, own_scratch=True) == 0
    assert not (place.scratch / "keep").exists()


def test_a_nearly_full_disk_is_refused(place: home.Home) -> None:
    with pytest.raises(StartError, match=r"^disk full: \d+ MiB free for .*, \d+ MiB are needed$"):
        home.make(place, minimum_free_bytes=2**60)


def test_one_supervisor_a_home(place: home.Home) -> None:
    first, second = home.Lock(place), home.Lock(place)
    first.take("pid 1, http://127.0.0.1:8000")
    with pytest.raises(StartError, match=r"already runs .*\(pid 1, http://127\.0\.0\.1:8000\)"):
        second.take("pid 2")
    first.release()
    second.take("pid 2")
    second.release()


def test_secret_key_is_made_once(place: home.Home) -> None:
    home.keep_secret_key(place)
    made = place.secret_key.read_text()
    home.keep_secret_key(place)
    assert place.secret_key.read_text() == made
    assert len(made) >= 50


def test_a_taken_port_is_named_and_a_lingering_connection_does_not_count() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(StartError, match=f"port {port} is taken"):
            programs.require_port(port)
        with socket.create_connection(("127.0.0.1", port)):
            connection, _ = server.accept()
            connection.close()  # the server's side closes first, so its end stays in TIME_WAIT
    programs.require_port(port)


@pytest.mark.parametrize(("wanted", "kinds"), [("cpu", ["cpu"]), ("cpu, cuda", ["cpu", "cuda"])])
def test_device_kinds(wanted: str, kinds: list[str]) -> None:
    assert programs.device_kinds(wanted) == kinds


def test_an_unknown_device_kind_is_named() -> None:
    with pytest.raises(StartError, match="'tpu' is none of cpu, cuda"):
        programs.device_kinds("tpu")


def test_logs_are_bounded_while_written(tmp_path: Path) -> None:
    """Emptied under a writer in append mode, who goes on at the start; of older logs two copies stay."""
    log = tmp_path / "web.log"
    handle = logs.open_log(log)
    try:
        for line in (b"first\n", b"second\n", b"third\n", b"fourth\n"):
            os.write(handle, line * 100)
            logs.rotate(log, limit_bytes=200)
        os.write(handle, b"now\n")
    finally:
        os.close(handle)
    assert log.read_text() == "now\n"
    assert log.with_name("web.log.1").read_text() == "fourth\n" * 100
    assert log.with_name("web.log.2").read_text() == "third\n" * 100
    assert sorted(path.name for path in tmp_path.iterdir()) == ["web.log", "web.log.1", "web.log.2"]


def _child(place: home.Home, code: str, ready_s: float = 10.0) -> Child:
    program = Program("part", [sys.executable, "-c", code], ready=lambda written: "ready" in written, ready_s=ready_s)
    return Child(program, dict(os.environ), ROOT, place.logs / "part.log")


def test_a_child_that_dies_at_the_start_says_its_last_words(place: home.Home) -> None:
    child = _child(place, "raise SystemExit('cannot bind: address in use')")
    child.start()
    with pytest.raises(StartError, match=r"part ended with status 1 while starting: cannot bind: address in use"):
        child.wait_ready(lambda: False)


def test_a_child_that_never_answers_is_given_up(place: home.Home) -> None:
    child = _child(place, "import time; print('loading', flush=True); time.sleep(600)", ready_s=0.5)
    child.start()
    try:
        with pytest.raises(StartError, match=r"did not become ready within 0 s: (loading|it wrote nothing)"):
            child.wait_ready(lambda: False)
    finally:
        child.stop(lambda: True)


def test_a_child_that_keeps_dying_is_given_up(place: home.Home) -> None:
    child = _child(place, "raise SystemExit('no database')")
    with pytest.raises(StartError, match=r"part died 5 times in 60 s: no database"):
        for _ in range(5):
            child.start()
            deadline = time.monotonic() + 10
            while child.exit_status() is None and time.monotonic() < deadline:
                time.sleep(0.02)
            child.note_death()


def test_stop_ends_grandchildren_too(place: home.Home) -> None:
    """The child obeys SIGTERM; what it started in its group must go with it."""
    inner = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    code = (
        f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {inner!r}]); "
        "print('ready', p.pid, flush=True); p.wait()"
    )
    child = _child(place, code)
    child.start()
    child.wait_ready(lambda: False)
    grandchild = int(child.written().split()[1])
    assert child.stop(lambda: False) == -signal.SIGTERM
    deadline = time.monotonic() + 10
    while guardian.start_time(grandchild) is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert guardian.start_time(grandchild) is None
