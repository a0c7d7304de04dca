"""A run program without a model: speaks the protocol of `scheduler_core.spec.job` and behaves as its arm's name says.

``python fake_run.py JOB.json``. The pids of its processes go to the folder ``HEADWAY_FAKE_PIDS``.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

JOB = json.loads(Path(sys.argv[1]).read_text())
FOLDER = Path(JOB["workdir"])


def say(kind: str, **fields: object) -> None:
    print(json.dumps({"type": kind, **fields}), flush=True)


def note_pids(*pids: int) -> None:
    folder = os.environ.get("HEADWAY_FAKE_PIDS")
    if folder:
        (Path(folder) / f"{JOB['run']}-{JOB['attempt']}").write_text(" ".join(map(str, pids)))


def file(kind: str, path_name: str, content: str, **fields: object) -> None:
    path = FOLDER / path_name
    path.write_text(content)
    digest = hashlib.sha256(content.encode()).hexdigest()
    say(kind, file=path_name, bytes=len(content), sha256=digest, **fields)


def sample(seq: int) -> None:
    say("sample", seq=seq, values={"t_s": seq / 10, "waiting": seq})
    say("progress", done=seq, total=100, eta_s=1.0)


def finish() -> None:
    say("state", state="finalising")
    file("artifact", "summary.json", json.dumps({"arm": JOB["arm"]}), name="summary.json")
    say("result", outcome="succeeded", summary={"arm": JOB["arm"]})
    sys.exit(0)


def stopped(number: int, frame: object) -> None:
    say("result", outcome="cancelled", reason="stopped on request")
    os._exit(1)


def tick(seconds: float) -> None:
    started, seq = time.monotonic(), 0
    while time.monotonic() - started < seconds:
        seq += 1
        sample(seq)
        time.sleep(0.1)


def quick() -> None:
    for seq in range(1, 6):
        sample(seq)
    for number in (1, 2):
        file("segment", f"segment-{number}.jsonl", f'{{"n": {number}}}\n', number=number, records=1)
    finish()


def slow() -> None:
    tick(60)
    finish()


def short() -> None:
    tick(3)
    finish()


def stubborn() -> None:
    """With a child of its own, and both deaf to SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(300)"])
    note_pids(os.getpid(), child.pid)
    tick(60)


def orphaning() -> None:
    """Ends well and leaves a child behind."""
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(300)"])
    note_pids(os.getpid(), child.pid)
    finish()


def garbage() -> None:
    print("Loading checkpoint shards: 100%", flush=True)
    tick(60)


def crash() -> None:
    sys.exit("CUDA error: out of memory")


def silent() -> None:
    sys.exit(0)


note_pids(os.getpid())
signal.signal(signal.SIGTERM, stopped)
say("state", state="running")
globals()[JOB["arm"]]()
