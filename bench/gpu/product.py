"""One experiment the way a person runs it: REST, the queue, a Celery worker of the device, kernels, the verdict."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headway.client import Client
from headway.config import Connection

ROOT = Path(__file__).resolve().parent.parent.parent
READY, READY_S, STOP_S, LIMIT_S, POLL_S = "Ctrl-C stops everything", 100.0, 40.0, 150.0, 0.5
ENDED = ("decided", "cancelled", "failed")
DECISIONS = {0: "accept", 10: "tune", 20: "reject", 30: "not comparable"}


def product(device: str) -> dict[str, Any]:
    """Static against continuous batching, two repeats each, on a stack with a worker of ``device`` alone."""
    experiment = {
        "name": f"check of {device}",
        "workload": {
            "arrivals": {"constant": {"rate_rps": 20}},
            "lengths": {"prompt": {"fixed": 96}, "output": {"fixed": 16}},
            "requests": 40,
        },
        "target": {"torch": {"model": "demo-s", "device": device, "kv_blocks": 1024}},
        "arms": {"baseline": {"policy": "static", "batch": {"size": 8}}, "continuous": {"policy": "vllm_v1"}},
        "repeats": 2,
    }
    with _stack(device) as client:
        began = time.monotonic()
        found = client.post("/experiments", experiment)
        while found["status"] not in ENDED:
            if time.monotonic() - began > LIMIT_S:
                raise RuntimeError(f"the experiment was {found['status']} after {LIMIT_S:.0f} s")
            time.sleep(POLL_S)
            found = client.get(f"/experiments/{found['id']}")
        runs = [client.get(f"/runs/{run['id']}") for run in found["runs"]]
    if found["status"] != "decided":
        raise RuntimeError(f"the experiment ended {found['status']}: {[run.get('reason') for run in runs]}")
    levels = sorted({str(run["summary"]["level"]) for run in runs})
    return {
        "verdict_s": round(time.monotonic() - began, 1),
        "decision": DECISIONS[found["exit_code"]],
        "levels": levels,
        "audited_same": all(run["summary"]["audit"]["passed"] for run in runs),
    }


@contextmanager
def _stack(device: str) -> Iterator[Client]:
    """A stack in a home of its own, which is gone afterwards, and a client of it."""
    home, port = Path(tempfile.mkdtemp(prefix="headway-check-")), _free_port()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWAY_", "DJANGO_"))}
    environ = {**kept, "HEADWAY_HOME": str(home / "home"), "HEADWAY_DEVICE_KINDS": device}
    said = home / "said.txt"
    with said.open("wb") as file:
        argv = [sys.executable, "manage.py", "up", "--port", str(port)]
        process = subprocess.Popen(
            argv, cwd=ROOT, env=environ, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        _wait_ready(process, said)
        made = [sys.executable, "manage.py", "api_token", "admin", "--days", "1"]
        token = subprocess.run(made, cwd=ROOT, env=environ, capture_output=True, text=True, check=True).stdout.strip()
        with Client(Connection(f"http://127.0.0.1:{port}", token)) as client:
            yield client
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        shutil.rmtree(home, ignore_errors=True)


def _wait_ready(process: subprocess.Popen[bytes], said: Path) -> None:
    deadline = time.monotonic() + READY_S
    while READY not in said.read_text(errors="replace"):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the stack did not start: {said.read_text(errors='replace')[-2000:]}")
        time.sleep(POLL_S)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
