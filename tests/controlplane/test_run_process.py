"""The run's process group: what it prints, how it ends, and that nothing of it stays."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from controlplane.runs.supervision.process import RunProcess

FAMILY = """
    import os, subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    print(os.getpid(), child.pid, flush=True)
"""


def start(folder: Path, code: str) -> RunProcess:
    command = [sys.executable, "-S", "-c", textwrap.dedent(code)]
    return RunProcess(command, log=folder / "stderr.log", cwd=folder, grace_s=0.5)


def lines(process: RunProcess) -> list[bytes]:
    found = []
    while (line := process.next_line(10)) is not None:
        assert line, "nothing came for 10 s"
        found.append(line)
    return found


def within(seconds: float, true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.02)
    return true()


def gone(*pids: int) -> bool:
    def alive(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
        except OSError:
            return False

    return not any(alive(pid) for pid in pids)


@pytest.mark.parametrize(
    ("code", "status"),
    [("print('a'); print('b')", 0), ("print('a'); print('b'); raise SystemExit(3)", 3)],
)
def test_lines_status_and_log(tmp_path: Path, code: str, status: int) -> None:
    process = start(tmp_path, f"import sys; sys.stderr.write('log line'); {code}")
    assert lines(process) == [b"a\n", b"b\n"]
    assert process.close() == status
    assert process.log_tail() == "log line"


def test_death_by_signal_is_told_apart(tmp_path: Path) -> None:
    process = start(tmp_path, "import os; os.kill(os.getpid(), 11)")
    assert lines(process) == []
    assert process.close() == -signal.SIGSEGV


def test_a_command_that_cannot_be_started_says_so(tmp_path: Path) -> None:
    process = RunProcess(["/no/such/program"], log=tmp_path / "log", cwd=tmp_path, grace_s=0.5)
    assert process.next_line(10) is None
    assert process.close() != 0
    assert "/no/such/program" in process.log_tail()


def test_children_end_with_the_command(tmp_path: Path) -> None:
    process = start(tmp_path, FAMILY)
    pids = [int(pid) for pid in process.next_line(10).split()]  # type: ignore[union-attr]
    assert process.close() == 0
    assert within(3, lambda: gone(*pids))


def test_asking_reaches_every_process_and_killing_ends_the_deaf(tmp_path: Path) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    process = start(tmp_path, deaf + textwrap.dedent(FAMILY) + "time.sleep(60)")
    pids = [int(pid) for pid in process.next_line(10).split()]  # type: ignore[union-attr]
    process.terminate()
    assert not within(0.3, lambda: gone(pids[0]))
    process.kill()
    assert process.next_line(5) is None
    process.close()
    assert within(3, lambda: gone(*pids))


def test_a_stopped_group_can_be_killed(tmp_path: Path) -> None:
    process = start(tmp_path, FAMILY + "    time.sleep(60)")
    pids = [int(pid) for pid in process.next_line(10).split()]  # type: ignore[union-attr]
    os.killpg(process.pid, signal.SIGSTOP)
    process.kill()
    process.close()
    assert within(3, lambda: gone(*pids))


@pytest.mark.parametrize("deaf", [False, True])
def test_the_group_dies_with_the_worker(tmp_path: Path, deaf: bool) -> None:
    """A worker that is killed leaves nothing: neither the command nor its children, listening or deaf."""
    ignoring = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if deaf else ""
    (tmp_path / "family.py").write_text(ignoring + textwrap.dedent(FAMILY) + "time.sleep(60)\n")
    worker = f"""
        import time
        from pathlib import Path
        from controlplane.runs.supervision.process import RunProcess
        folder = Path({str(tmp_path)!r})
        command = [{sys.executable!r}, "-S", str(folder / "family.py")]
        process = RunProcess(command, log=folder / "log", cwd=folder, grace_s=0.5)
        print(process.pid, process.next_line(10).decode(), flush=True)
        time.sleep(60)
    """
    holder = subprocess.Popen([sys.executable, "-c", textwrap.dedent(worker)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    with holder.stdout:
        pids = [int(pid) for pid in holder.stdout.readline().split()]
    assert len(pids) == 3
    holder.kill()
    holder.wait()
    assert within(5, lambda: gone(*pids))


def test_the_run_knows_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SECRET_KEY", "DATABASE_URL", "REDIS_URL", "REDIS_URL_FILE", "SECRET_KEY_FILE"):
        monkeypatch.setenv(name, "canary")
    process = start(tmp_path, "import os; print('canary' in os.environ.values())")
    assert lines(process) == [b"False\n"]
    process.close()


def test_output_without_end_of_line_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.runs.supervision.process.LINE_LIMIT", 1000)
    process = start(tmp_path, "print('x' * 2500)")
    assert [len(line) for line in lines(process)] == [1000, 1000, 501]
    process.close()
