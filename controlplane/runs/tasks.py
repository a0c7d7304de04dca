"""The Celery side of runs: one task, whose message is only a doorbell."""

import logging

from controlplane.celery import app
from controlplane.runs.models import Run
from controlplane.runs.supervision.supervisor import supervise
from controlplane.runs.supervision.worker import leave_if_told, this_worker

log = logging.getLogger(__name__)


@app.task(name="controlplane.runs.tasks.execute", bind=True)  # type: ignore[untyped-decorator]
def execute(self, run_id: str, attempt: int) -> None:  # type: ignore[no-untyped-def]
    """Execute an attempt of a run, if it is still wanted and nobody has it. A message that says nothing is dropped."""
    if not isinstance(run_id, str) or not isinstance(attempt, int):
        log.warning("dropped a message that names no attempt of a run: %.100r %.100r", run_id, attempt)
        return
    supervise(run_id=run_id, attempt=attempt, place=this_worker(self.request.hostname))
    leave_if_told()


def queue_name(device_kind: str) -> str:
    """The Celery queue of a device kind."""
    return f"headway.{device_kind}"


def ring(run: Run) -> None:
    """Send the message of a run's current attempt; `BrokerDownError` when no broker answers."""
    from kombu.exceptions import OperationalError

    from controlplane.errors import BrokerDownError

    try:
        execute.apply_async((run.pk, run.attempt), queue=queue_name(run.device_kind), retry=False)
    except (OperationalError, ConnectionError) as error:
        raise BrokerDownError(f"the message broker does not answer: {error}") from error
