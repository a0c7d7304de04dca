"""``python -m gpu_runner.search JOB.json``: a search job (see `scheduler_core.spec.job`), artifact ``search.json``."""

import logging
import sys
from pathlib import Path

from gpu_runner.process import AskedToStop, Deadline, Emit, emit, log_to_stderr, read_job, told
from gpu_runner.run.progress import Progress
from gpu_runner.search.play import Search
from scheduler_core.files import write_json
from scheduler_core.spec.job import ArtifactMessage, ResultMessage, SearchJob, StateMessage
from scheduler_core.types.errors import HeadwayError
from scheduler_core.workload.plan import ArrivalPlan

_log = logging.getLogger(__name__)


def search(job: SearchJob, say: Emit, stop: Deadline) -> ResultMessage:
    """Do the search that ``job`` describes; every error becomes the result's reason."""
    out = Path(job.workdir) / "search.json"
    try:
        say(StateMessage(state="starting"))
        out.parent.mkdir(parents=True, exist_ok=True)
        plan = ArrivalPlan.read(Path(job.plan_file))
        say(StateMessage(state="running"))
        found = Search(job.spec, plan, job.profile, job.group_profiles).result(Progress(say), stop)
        if stop.reason:
            return ResultMessage(outcome=stop.outcome, reason=stop.reason)
        say(StateMessage(state="finalising"))
        write_json(out, found.canonical())
    except HeadwayError as error:
        return ResultMessage(outcome="failed", reason=str(error))
    except Exception as error:  # the process boundary: a fault must become a reason, never a silent death
        _log.exception("search %s failed", job.spec.name)
        return ResultMessage(outcome="failed", reason=f"internal fault: {type(error).__name__}: {error}")
    say(ArtifactMessage.of(out))
    return ResultMessage(outcome="succeeded", reason=found.sentence)


def main(arguments: list[str]) -> int:
    """0 when the search ended with a result."""
    log_to_stderr()
    if len(arguments) != 1:
        print("usage: python -m gpu_runner.search JOB.json", file=sys.stderr)
        return 2
    job = read_job(SearchJob, Path(arguments[0]))
    return 1 if job is None else told(search(job, emit, Deadline(AskedToStop(), job.wall_limit_s)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
