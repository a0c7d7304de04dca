"""The demo on this machine: how long it takes, what each arm reaches, whether every request's time is accounted for.

Quick: one repeat of each arm at half the demo's requests, in this process. Full: the five repeats of the demo, then a
fresh installation (``install_s``) and the demo on the embedded stack, start to verdict (``stack_s``).
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import harness
from headway import demo
from headway.calibration import calibrate
from headway.play import Played, Step, play
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.job import ProgressMessage
from scheduler_core.spec.parse import parse

ROOT = Path(__file__).resolve().parent.parent
VERDICTS = {0: "accept", 10: "tune", 20: "reject", 30: "not comparable"}
PER_ARM = (
    "ttft_p50_ms",
    "ttft_p95_ms",
    "tpot_p95_ms",
    "e2e_p95_ms",
    "goodput_rps",
    "throughput_tokens_per_s",
    "completion_share",
)


def quick() -> harness.Figures:
    """A shortened demo."""
    return _play(repeats=1, share=0.5)


def full() -> harness.Figures:
    """The whole demo, and what it takes to get there from a fresh copy."""
    figures = _play(repeats=demo.REPEATS, share=1.0)
    with tempfile.TemporaryDirectory(prefix="headway-bench-") as folder:
        installed = _install(Path(folder) / "headway")
        return {**figures, **installed, **_run_stack(Path(folder) / "headway")}


def _play(*, repeats: int, share: float) -> dict[str, Any]:
    began = time.monotonic()
    profile = calibrate(name="bench", target=demo.target(), quick=True, on_progress=_no_progress)
    calibrated = time.monotonic()
    made = demo.build(profile)
    data = made.experiment.canonical()
    data["repeats"] = repeats
    data["workload"]["requests"] = max(round(data["workload"]["requests"] * share), 24)
    spec = parse(ExperimentSpec, data)
    sized = time.monotonic()
    played = play(spec, base=Path.cwd(), on_step=_say_step)
    return {
        "calibrate_s": round(calibrated - began, 2),
        "size_s": round(sized - calibrated, 2),
        "run_s": round(time.monotonic() - sized, 2),
        "rate_rps": made.size.rate_rps,
        "lengths_scale_x": made.size.lengths_scale,
        "played_runs": len(played.runs),
        "failed_runs": len(played.failures),
        **_reached(played),
    }


def _reached(played: Played) -> dict[str, Any]:
    shares = [run.metrics["unattributed_share_max"].value for run in played.runs]
    known = [share for share in shares if share is not None]
    arms: dict[str, Any] = {}
    for name in played.experiment.arms:
        runs = [run for run in played.runs if run.arm == name]
        arms[name] = {metric: _median([run.metrics[metric].value for run in runs]) for metric in PER_ARM}
        arms[name]["duration_s"] = _median([run.duration_s for run in runs])
    return {
        "plan_requests": len(played.plan.requests),
        "plan_digest": played.plan.digest,
        "same_lengths_in_every_arm": len({run.lengths_digest for run in played.runs}) == 1,
        "same_tokens_in_every_arm": len({run.outputs_digest for run in played.runs}) == 1,
        "audits_passed": all(run.audit.passed for run in played.runs),
        "unattributed_share_max": max(known) if known else None,
        "arms": arms,
    }


def _median(values: list[float | None]) -> float | None:
    known = sorted(value for value in values if value is not None)
    return known[len(known) // 2] if known else None


def _no_progress(message: ProgressMessage) -> None:
    return None


def _say_step(step: Step) -> None:
    if step.done == 0:
        harness.say(f"run {step.number} of {step.total}: {step.words()}")


def _install(copy: Path) -> dict[str, Any]:
    """Build an environment from nothing, with an empty cache, in a copy of what git tracks."""
    copy.mkdir()
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            shutil.copy2(ROOT / name, copy / name)
    harness.say("installing from nothing ...")
    began = time.monotonic()
    base = getattr(sys, "_base_executable", sys.executable)
    environ = {**os.environ, "PIP_NO_CACHE_DIR": "1"}
    done = subprocess.run([base, "bootstrap.py"], cwd=copy, env=environ, stdout=sys.stderr, check=False)
    if done.returncode:
        raise RuntimeError(f"the installation ended with status {done.returncode}")
    took = time.monotonic() - began
    size = sum(path.stat().st_size for path in (copy / ".venvs").rglob("*") if path.is_file() and not path.is_symlink())
    return {"install_s": round(took, 1), "installed_mb": round(size / 1e6)}


def _run_stack(copy: Path) -> dict[str, Any]:
    """The demo on the embedded stack, from the first process to the verdict and the end of the last process."""
    port = _free_port()
    harness.say("the demo on the embedded stack ...")
    began = time.monotonic()
    argv = [str(copy / ".venv" / "bin" / "python"), "manage.py", "up", "--demo", "--exit-after-demo", f"--port={port}"]
    environ = {**os.environ, "HEADWAY_HOME": str(copy / "home")}
    done = subprocess.run(argv, cwd=copy, env=environ, stdout=sys.stderr, check=False)
    if done.returncode not in VERDICTS:
        raise RuntimeError(f"the demo ended with status {done.returncode}")
    return {"stack_s": round(time.monotonic() - began, 1), "verdict": VERDICTS[done.returncode]}


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(harness.main("demo", quick=quick, full=full))
