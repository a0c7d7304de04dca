"""``python -m gpu_runner.run JOB.json``: the protocol is described in `scheduler_core.spec.job`."""

import sys
from pathlib import Path

from gpu_runner.process import AskedToStop, emit, log_to_stderr, read_job, told
from gpu_runner.run.compose import execute
from scheduler_core.spec.job import RunJob


def main(arguments: list[str]) -> int:
    """Do the run named on the command line; 0 when it succeeded."""
    log_to_stderr()
    stop = AskedToStop()
    if len(arguments) != 1:
        print("usage: python -m gpu_runner.run JOB.json", file=sys.stderr)
        return 2
    job = read_job(RunJob, Path(arguments[0]))
    return 1 if job is None else told(execute(job, emit, stop))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
