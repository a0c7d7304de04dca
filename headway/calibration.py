"""Calibrating this machine or a server: a process of its own measures steps and fits a profile."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headway.serving import local_access
from scheduler_core.spec.job import MESSAGES, ArtifactMessage, CalibrationJob, ProgressMessage, ResultMessage
from scheduler_core.spec.parse import parse
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.server import ServerTarget
from scheduler_core.spec.target import Profile, TorchTarget
from scheduler_core.types.errors import HeadwayError

PROBE_LIMIT_S = 1800.0  # a launched server may take a third of it to be ready

OnProgress = Callable[[ProgressMessage], None]


class CalibrationError(HeadwayError):
    """The calibration process ended without a profile."""


def calibrate(*, name: str, target: TorchTarget, quick: bool, on_progress: OnProgress) -> Profile:
    """Measure ``target`` on this machine and fit a profile called ``name``.

    ``quick`` measures fewer steps: enough to size a demo, not to plan by.

    Raises:
        CalibrationError: it failed; the message is the process's own reason.
    """
    return _measured({"name": name, "target": target, "quick": quick}, on_progress)


def calibrate_server(
    *, name: str, server: ServerTarget, policy: PolicySpec, quick: bool, on_progress: OnProgress
) -> Profile:
    """Probe a server from here and fit a profile called ``name``.

    ``policy`` is what a launched server is started with, and says what another does not show itself.

    Raises:
        InputError: the server is an endpoint, which only an installation knows, or a template that is not here.
        CalibrationError: it failed; the message is the process's own reason.
    """
    job = {"name": name, "server": server, "policy": policy, "quick": quick, "access": local_access(server, "")}
    return _measured({**job, "wall_limit_s": PROBE_LIMIT_S}, on_progress)


def _measured(fields: dict[str, Any], on_progress: OnProgress) -> Profile:
    """The profile that a calibration process makes of a job with ``fields``."""
    with tempfile.TemporaryDirectory(prefix="headway-calibrate-") as folder:
        job = CalibrationJob(run="calibration", workdir=folder, **fields)
        path = Path(folder) / "job.json"
        path.touch(mode=0o600)  # it may hold the key of a server
        path.write_text(job.model_dump_json(), encoding="utf-8")
        made: Path | None = None
        ending: ResultMessage | None = None
        with _process([sys.executable, "-m", "gpu_runner.calibrate", str(path)], Path(folder) / "log") as lines:
            for line in lines:
                message = MESSAGES.validate_json(line)
                if isinstance(message, ProgressMessage):
                    on_progress(message)
                elif isinstance(message, ArtifactMessage) and message.name == "profile.json":
                    made = Path(message.file)
                elif isinstance(message, ResultMessage):
                    ending = message
        if ending is None or ending.outcome != "succeeded" or made is None:
            reason = ending.reason if ending else _last_line(Path(folder) / "log")
            raise CalibrationError(f"calibration failed: {reason or 'it ended without saying why'}")
        return parse(Profile, json.loads(made.read_text(encoding="utf-8")))


@contextmanager
def _process(argv: list[str], log: Path) -> Iterator[Iterator[str]]:
    """Lines of a process's output; the process is gone when the context ends, however it ends.

    It stays in this process's group, so that whoever ends that group ends it too.
    """
    with log.open("wb") as errors:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            assert process.stdout is not None  # a pipe was asked for
            yield (line for line in process.stdout if line.strip())
            process.wait(timeout=10)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else ""
