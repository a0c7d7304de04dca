"""``python -m gpu_runner.calibrate JOB.json`` (see `scheduler_core.spec.job`), or with options, for use by hand."""

import argparse
import logging
import math
import sys
import time
from pathlib import Path

from gpu_runner.calibrate.profile import Stopped, calibrate
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
_REPORT_EVERY_S = 0.5
_log = logging.getLogger(__name__)


class _Reporter:
    """Turns shares into progress messages, a few a second at most."""

    def __init__(self, emit: Emit, seconds: float) -> None:
        self._emit = emit
        self._seconds = seconds
        self._last = 0.0

    def __call__(self, share: float) -> None:
        now = time.monotonic()
        if share < 1 and now - self._last < _REPORT_EVERY_S:
            return
        self._last = now
        self._emit(ProgressMessage(done=round(share * 100), total=100, eta_s=round((1 - share) * self._seconds, 1)))


def run_job(path: Path) -> int:
    """Do the calibration that the job file describes; 0 when it succeeded."""
    job = read_job(CalibrationJob, path)
    if job is None:
        return 1
    seconds = _QUICK_S if job.quick else _PROPER_S
    target = job.target
    settings = EngineSettings(
        model=target.model,
        device=target.device,
        dtype=target.dtype,
        threads=target.threads,
        kv_blocks=target.kv_blocks,
        weight_seed=target.weight_seed,
    )
    out = Path(job.workdir) / "profile.json"
    return told(_attempt(emit, settings, (job.name, seconds), out, Deadline(AskedToStop(), job.wall_limit_s)))


def _attempt(say: Emit, settings: EngineSettings, what: tuple[str, float], out: Path, stop: Deadline) -> ResultMessage:
    """Calibrate for ``what``, a name and a number of seconds; every error becomes the result's reason."""
    name, seconds = what
    say(StateMessage(state="starting"))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        say(StateMessage(state="running"))
        profile = calibrate(settings, seconds=seconds, name=name, progress=_Reporter(say, seconds), stop=stop)
        say(StateMessage(state="finalising"))
        write_json(out, profile.canonical())
    except Stopped:
        return ResultMessage(outcome=stop.outcome, reason=stop.reason)
    except HeadwayError as error:
        return ResultMessage(outcome="failed", reason=str(error))
    except OSError as error:
        return ResultMessage(outcome="failed", reason=f"{out} cannot be written: {error.strerror}")
    except Exception as error:  # the process boundary: a fault must become a reason, never a silent death
        _log.exception("calibration %s failed", name)
        return ResultMessage(outcome="failed", reason=f"internal fault: {type(error).__name__}: {error}")
    say(ArtifactMessage.of(out))
    return ResultMessage(outcome="succeeded", reason=_sentence(profile))


def _sentence(profile: Profile) -> str:
    return (
        f"{profile.steps_measured} steps measured; steps left out of the fit are predicted to "
        f"{profile.held_out_error_share:.1%} on average"
    )


def _arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gpu_runner.calibrate", description=__doc__)
    parser.add_argument("job", nargs="?", type=Path, help="a calibration job file; the options are then not read")
    parser.add_argument("--model", default="demo-s", help="built-in shape or local Hugging Face folder")
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
    result = _attempt(say, settings, (options.name, options.seconds), options.out, Deadline(AskedToStop(), math.inf))
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
