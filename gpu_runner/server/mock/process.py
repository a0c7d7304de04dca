"""The mock as a process of its own, for as long as a ``with`` block lasts."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_runner.server.mock.behaviour import Behaviour


@contextmanager
def mock_server(behaviour: Behaviour) -> Iterator[str]:
    """Start a mock and give its address, ``http://127.0.0.1:PORT``; it ends with the block, or with this process."""
    with tempfile.TemporaryDirectory(prefix="headway-mock-") as folder:
        file = Path(folder) / "behaviour.json"
        file.write_text(behaviour.model_dump_json(), encoding="utf-8")
        command = [sys.executable, "-m", "gpu_runner.server.mock", str(file)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}"
        finally:
            process.terminate()
            process.wait(timeout=10)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
