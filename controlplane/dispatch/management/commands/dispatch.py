"""``manage.py dispatch``: the dispatch process."""

import logging
import signal
import threading
from typing import Any

from django.core.management.base import BaseCommand

from controlplane.dispatch import loop

log = logging.getLogger(__name__)


class Command(BaseCommand):
    """Runs until SIGTERM or SIGINT. Exactly one is enough; more do no harm."""

    help = "Send the messages of queued runs, take back runs of dead workers, settle experiments. Runs until SIGTERM."

    def handle(self, *args: Any, **options: Any) -> None:
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        log.info("dispatch ready")
        loop.run(stop)
        log.info("dispatch stopped")
