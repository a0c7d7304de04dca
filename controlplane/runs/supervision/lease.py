"""The thread that renews a run's lease and learns what is asked of the run."""

import logging
import threading
import time
from types import TracebackType
from typing import Any, Self

from django.conf import settings
from django.db import DatabaseError, close_old_connections, connection

from controlplane.runs.services import LeaseState, renew_lease

log = logging.getLogger(__name__)


class LeaseKeeper:
    """Renews every heartbeat until closed. What it learned is read through the properties, from any thread.

    The database is the judge while it answers. While it does not, a lease that was not renewed for all but one
    heartbeat of its length counts as lost: soon after, the reaper may give the run to somebody else.
    """

    def __init__(self, *, run_id: str, attempt: int, worker: str) -> None:
        self._lease: dict[str, Any] = {"run_id": run_id, "attempt": attempt, "worker": worker}
        self._state = LeaseState(still_mine=True)
        self._renewed = time.monotonic()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._closing.set()
        self._thread.join(timeout=5)

    @property
    def lost(self) -> str:
        """Why the lease is lost; empty while it is held."""
        if not self._state.still_mine:
            return "the run is no longer held by this attempt"
        silent = time.monotonic() - self._renewed
        if silent > (settings.RUN_LEASE - settings.RUN_HEARTBEAT).total_seconds():
            return f"the lease could not be renewed for {silent:.0f} s"
        return ""

    @property
    def cancel_requested(self) -> bool:
        """Whether somebody asked for the run's end."""
        return self._state.cancel_requested

    @property
    def worker_stopping(self) -> bool:
        """Whether this worker was asked to shut down."""
        return self._state.worker_stopping

    def _keep(self) -> None:
        try:
            while self._state.still_mine and not self._closing.wait(settings.RUN_HEARTBEAT.total_seconds()):
                self._renew()
        finally:
            connection.close()

    def _renew(self) -> None:
        started = time.monotonic()
        try:
            close_old_connections()
            state = renew_lease(**self._lease)
        except DatabaseError as error:
            log.warning("could not renew the lease of %s: %s", self._lease["run_id"], error)
            connection.close()
            return
        self._state, self._renewed = state, started
