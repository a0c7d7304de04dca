"""The loop of the dispatch process. Several may run at once: every step is a conditional update."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from django.conf import settings
from django.db import DatabaseError, close_old_connections, connection
from django.utils import timezone

from controlplane.errors import BrokerDownError
from controlplane.experiments import selectors as experiments
from controlplane.experiments.services import advance
from controlplane.fleet.services import forget_workers
from controlplane.live.groups import announce_experiment
from controlplane.runs.services import dispatch_outbox, reap
from controlplane.runs.tasks import ring
from controlplane.studies import selectors as studies
from controlplane.studies.services import advance_study

log = logging.getLogger(__name__)

TURN_S = 0.25
LONGEST_BACKOFF_S = 5.0
HOUSEKEEPING_S = 3600.0


@dataclass
class Chore:
    """Something done every ``every_s`` seconds; after a failure it is put off ever longer, the others go on."""

    name: str
    every_s: float
    work: Callable[[datetime], object]
    due: float = 0.0
    failures: int = field(default=0)

    def turn(self, now_s: float) -> None:
        """Do it if it is due."""
        if now_s < self.due:
            return
        try:
            self.work(timezone.now())
        except (BrokerDownError, DatabaseError) as error:
            self._put_off(now_s)
            if self.failures == 1:  # said once an outage, not once a turn
                log.warning("%s: %s; trying on", self.name, error)
            connection.close()
        except Exception:
            self._put_off(now_s)
            log.exception("%s failed", self.name)
        else:
            if self.failures:
                log.info("%s works again after %d failures", self.name, self.failures)
            self.failures, self.due = 0, now_s + self.every_s

    def _put_off(self, now_s: float) -> None:
        self.failures += 1
        self.due = now_s + min(self.every_s * 2 ** min(self.failures, 10), max(LONGEST_BACKOFF_S, self.every_s))


class ExperimentWatch:
    """Settles experiments whose runs moved, and tells their viewers; one that fails does not hold up the others."""

    def __init__(self) -> None:
        self._seen: dict[str, object] = {}

    def turn(self, now: datetime) -> None:
        """Look at every experiment that is not settled."""
        seen: dict[str, object] = {}
        for experiment in experiments.unsettled():
            key = experiment.pk
            try:
                seen[key] = tuple(experiments.runs_of(experiment).values_list("state", "attempt", "done"))
                advance(key)
            except DatabaseError:
                raise
            except Exception:
                log.exception("experiment %s could not be settled", key)
            if self._seen.get(key) != seen.get(key):
                announce_experiment(key)
        self._seen = seen


def advance_studies(now: datetime) -> None:
    """Take every running study on; one that fails does not hold up the others."""
    for study in studies.unsettled():
        try:
            advance_study(study)
        except DatabaseError:
            raise
        except Exception:
            log.exception("study %s could not go on", study.pk)


def chores() -> list[Chore]:
    """What the process does, in order of urgency."""
    return [
        Chore("reaping", settings.RUN_REAP_EVERY.total_seconds(), reap),
        Chore("dispatching", TURN_S, lambda now: dispatch_outbox(now, send=ring)),
        Chore("settling experiments", 2 * TURN_S, ExperimentWatch().turn),
        Chore("advancing studies", 2 * TURN_S, advance_studies),
        Chore("forgetting workers", HOUSEKEEPING_S, forget_workers),
    ]


def run(stop: threading.Event) -> None:
    """Do all chores in turn until ``stop``."""
    work = chores()
    while not stop.wait(TURN_S):
        close_old_connections()
        for chore in work:
            chore.turn(time.monotonic())
    connection.close()
