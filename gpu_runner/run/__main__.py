"""``python -m gpu_runner.run JOB.json``: the protocol is described in `scheduler_core.spec.job`."""

import json
import logging
import signal
import sys
from pathlib import Path
from types import FrameType

from gpu_runner.run.compose import execute
from scheduler_core.spec.job import Message, ResultMessage, RunJob
from scheduler_core.spec.parse import parse
from scheduler_core.types.errors import InputError


class _StopFlag:
    """Set by SIGTERM and SIGINT; asked between steps."""

    def __init__(self) -> None:
        self.set = False

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        self.set = True

    def __call__(self) -> bool:
        return self.set


def emit(message: Message) -> None:
    """One line of JSON on standard output, at once."""
    sys.stdout.write(message.model_dump_json() + "\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    """Do the run named on the command line; 0 when it succeeded."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    stop = _StopFlag()
    signal.signal(signal.SIGTERM, stop.on_signal)
    signal.signal(signal.SIGINT, stop.on_signal)
    if len(arguments) != 1:
        print("usage: python -m gpu_runner.run JOB.json", file=sys.stderr)
        return 2
    try:
        job = parse(RunJob, json.loads(Path(arguments[0]).read_text()))
    except (OSError, ValueError, InputError) as error:
        emit(ResultMessage(outcome="failed", reason=f"the job file cannot be used: {error}"))
        return 1
    result = execute(job, emit, stop)
    emit(result)
    return 0 if result.outcome == "succeeded" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
