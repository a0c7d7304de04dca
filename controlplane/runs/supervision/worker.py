"""This process as a worker: its device, its heartbeat, and how it learns that it has to go.

Celery's main process registers the worker and beats; the pool child that executes runs notices the main process's
death, and SIGTERM, itself. Neither ever imports torch: the device kind is configuration, not a discovery.
"""

import contextlib
import logging
import os
import signal
import socket
import threading
from types import FrameType
from typing import Any

from billiard.util import set_pdeathsig  # type: ignore[import-untyped]
from celery import signals
from django.conf import settings
from django.db import DatabaseError, close_old_connections, connection

from controlplane.fleet.models import Worker
from controlplane.fleet.services import beat_worker, mark_stopping, register_worker
from controlplane.runs.supervision.supervisor import Place
from controlplane.runs.supervision.workdir import clear_abandoned

log = logging.getLogger(__name__)


def device_name() -> str:
    """What one run at a time is held on: ``host/kind:index``."""
    return f"{socket.gethostname()}/{settings.DEVICE_KIND}:{settings.DEVICE_INDEX}"


# --- the pool child ---------------------------------------------------------------------------------------------------


class _Child:
    """What the executing process knows of its own end."""

    parent: int | None = None
    terminated = False


def this_worker(name: str) -> Place:
    """The place of a run that this process executes; from here on SIGTERM means to give it back."""
    if _Child.parent is not None:
        signal.signal(signal.SIGTERM, _terminate)  # here, since the pool sets its own handler after `_in_child`
    return Place(worker=name, device=device_name(), stopping=_stopping)


def _stopping() -> str:
    if _Child.parent is not None and os.getppid() != _Child.parent:
        return "its worker's main process died"
    return "its worker was told to stop" if _Child.terminated else ""


@signals.worker_process_init.connect  # type: ignore[untyped-decorator]
def _in_child(**_: Any) -> None:
    _Child.parent = os.getppid()
    # Celery's choice is SIGKILL, which would leave the run to the reaper; this way it is given back at once.
    with contextlib.suppress(OSError):  # Linux only; elsewhere a run watches its parent
        set_pdeathsig(signal.SIGTERM)


def _terminate(number: int, frame: FrameType | None) -> None:
    """Give a run back in order; an idle child ends at once.

    May come many times: the kernel sends it for each thread of a dying main process that was the parent for a moment.
    """
    _Child.terminated = True
    if not _running():
        os._exit(128 + number)


def _running() -> bool:
    return any(thread.name == "lease" for thread in threading.enumerate())


def leave_if_told() -> None:
    """End this process after its run was given back; Celery's main process, if there still is one, makes another."""
    if _Child.parent is not None and _stopping():
        logging.shutdown()
        os._exit(0)


# --- the main process -------------------------------------------------------------------------------------------------


class Beat:
    """Registers this worker and keeps its heartbeat fresh, from a thread of Celery's main process."""

    def __init__(self, name: str, app: Any) -> None:
        self._name, self._app = name, app
        self._stopping, self._closing = threading.Event(), threading.Event()
        self._told = False
        self._draining = False
        self._thread = threading.Thread(target=self._run, name="worker-beat", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stopping(self) -> None:
        """The worker was asked to shut down; safe to call from a signal handler."""
        self._stopping.set()

    def close(self) -> None:
        """End the thread."""
        self._stopping.set()
        self._closing.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        registered = False
        every = settings.RUN_HEARTBEAT.total_seconds()
        try:
            while not self._closing.is_set():
                try:
                    close_old_connections()
                    registered = self._beat(registered=registered)
                except DatabaseError as error:
                    log.warning("the worker's heartbeat was not written: %s", error)
                    connection.close()
                # Once told to stop, it is only a matter of the children giving their run back.
                (self._closing if self._told else self._stopping).wait(every)
        finally:
            connection.close()

    def _beat(self, *, registered: bool) -> bool:
        if self._stopping.is_set() and not self._told:
            mark_stopping(name=self._name, pid=os.getpid())
            self._told = True
            return registered
        if not registered or not beat_worker(name=self._name, pid=os.getpid()):
            kind = settings.DEVICE_KIND
            host = socket.gethostname()
            register_worker(name=self._name, host=host, pid=os.getpid(), device_kind=kind, device=device_name())
            clear_abandoned()
        self._follow_draining()
        return True

    def _follow_draining(self) -> None:
        """A draining worker leaves its queue, so that its messages go to others."""
        wanted = Worker.objects.filter(name=self._name, draining=True).exists()
        if wanted == self._draining:
            return
        control = self._app.control
        change = control.cancel_consumer if wanted else control.add_consumer
        change(f"headway.{settings.DEVICE_KIND}", destination=[self._name])
        self._draining = wanted


_beats: list[Beat] = []


@signals.worker_ready.connect  # type: ignore[untyped-decorator]
def _ready(sender: Any, **_: Any) -> None:
    beat = Beat(sender.hostname, sender.app)
    _beats.append(beat)
    beat.start()


@signals.worker_shutting_down.connect  # type: ignore[untyped-decorator]
def _shutting_down(**_: Any) -> None:
    for beat in _beats:
        beat.stopping()


@signals.worker_shutdown.connect  # type: ignore[untyped-decorator]
def _shut_down(**_: Any) -> None:
    while _beats:
        _beats.pop().close()
