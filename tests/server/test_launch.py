"""A server started by a run: waited for, played, ended with everything it started, also when the run is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpu_runner.server.launch.launcher import Launched
from scheduler_core.spec.launch import LaunchTemplate
from scheduler_core.types.errors import InputError

SERVER = """
import http.server, subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "child-of-{mark}"])
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("content-length", "0"); self.end_headers()
    def log_message(self, *args): pass
print("flags", sys.argv[2:], flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Ready).serve_forever()
"""


def template(tmp_path: Path, code: str = SERVER, **more: object) -> LaunchTemplate:
    script = tmp_path / "server.py"
    script.write_text(code.replace("{mark}", tmp_path.name))
    return LaunchTemplate.model_validate(
        {"server": "vllm", "command": [sys.executable, str(script), "{port}"], "stop_s": 5, **more}
    )


def alive(mark: str) -> list[int]:
    """Processes whose command line names ``mark``."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def wait_gone(mark: str) -> None:
    for _ in range(100):
        if not alive(mark):
            return
        time.sleep(0.1)
    raise AssertionError(f"still there: {alive(mark)}")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc to look for processes")
def test_a_launched_server_is_ready_has_its_flags_and_leaves_nothing(tmp_path: Path) -> None:
    launched = Launched(template(tmp_path), ["--max-num-seqs", "8"], tmp_path / "server.log")
    launched.start(lambda: False)
    try:
        assert launched.load_ns > 0 and not launched.ended()
        assert "flags ['--max-num-seqs', '8']" in launched.tail()
        assert alive(f"child-of-{tmp_path.name}")
    finally:
        launched.close()
    assert launched.ended()
    wait_gone(tmp_path.name)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc to look for processes")
def test_a_run_that_is_killed_takes_its_server_along(tmp_path: Path) -> None:
    spec = tmp_path / "template.json"
    spec.write_text(template(tmp_path).model_dump_json())
    code = (
        "import sys, time; from pathlib import Path\n"
        "from gpu_runner.server.launch.launcher import Launched\n"
        "from scheduler_core.spec.launch import LaunchTemplate\n"
        f"t = LaunchTemplate.model_validate_json(Path({str(spec)!r}).read_text())\n"
        f"l = Launched(t, [], Path({str(tmp_path / 'log')!r})); l.start(lambda: False)\n"
        "print('up', flush=True); time.sleep(600)"
    )
    run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert run.stdout is not None and run.stdout.readline() == b"up\n"
    assert alive(f"child-of-{tmp_path.name}")
    run.send_signal(signal.SIGKILL)
    run.wait()
    run.stdout.close()
    wait_gone(f"child-of-{tmp_path.name}")


@pytest.mark.parametrize(
    ("code", "more", "words"),
    [
        (
            "print('no such model', flush=True); raise SystemExit(3)",
            {},
            "ended with status 3 before it was ready",
        ),
        ("import time; time.sleep(60)", {"ready_s": 0.5}, "was not ready within 0.5 s"),
    ],
)
def test_a_server_that_does_not_come_up_says_why(tmp_path: Path, code: str, more: dict[str, float], words: str) -> None:
    launched = Launched(template(tmp_path, code, **more), [], tmp_path / "server.log")
    with pytest.raises(InputError, match=words):
        launched.start(lambda: False)
    launched.close()


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    spec = LaunchTemplate.model_validate({"server": "vllm", "command": ["/no/such/program", "{port}"], "ready_s": 5})
    launched = Launched(spec, [], tmp_path / "server.log")
    with pytest.raises(InputError, match=r"/no/such/program: No such file or directory"):
        launched.start(lambda: False)
    launched.close()
