"""What is wrong with the installation right now, said at the top of every page instead of by a spinner."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import redis
from django.conf import settings
from django.utils import timezone

from controlplane.fleet.models import Worker
from controlplane.runs.lifecycle import LEASED_STATES, WAITING_STATES, State
from controlplane.runs.models import Outbox, Run
from controlplane.ui.readings import duration

_REDIS_LOOK_EVERY_S = 3.0
_UNSENT_AFTER = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that is wrong, what it means, and what to do."""

    tone: str
    title: str
    text: str


class _RedisLook:
    """Whether Redis answers, asked at most every few seconds by each process."""

    def __init__(self) -> None:
        self._at = float("-inf")
        self._answers = True

    def answers(self) -> bool:
        """The newest answer."""
        now = time.monotonic()
        if now - self._at >= _REDIS_LOOK_EVERY_S:
            self._at, self._answers = now, _ping()
        return self._answers


_look = _RedisLook()


def _ping() -> bool:
    client = redis.Redis.from_url(settings.REDIS_URL, socket_connect_timeout=0.3, socket_timeout=0.3)
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False
    finally:
        client.close()


def _uses_redis() -> bool:
    layers: dict[str, Any] = settings.CHANNEL_LAYERS
    return str(layers["default"]["BACKEND"]).startswith("channels_redis")


def troubles() -> list[Trouble]:
    """Everything that is wrong now, the gravest first. Two queries."""
    return [*_redis(), *_workers(), *_dispatch()]


def _redis() -> Iterator[Trouble]:
    if _uses_redis() and not _look.answers():
        yield Trouble(
            "bad",
            "Redis does not answer.",
            "Queued runs are safe in the database and start once it is back; pages update by polling until then.",
        )


def _workers() -> Iterator[Trouble]:
    newest = Worker.objects.order_by("-heartbeat_at").values_list("heartbeat_at", flat=True).first()
    now = timezone.now()
    if newest is not None and now - newest <= settings.WORKER_DEAD_AFTER:
        return
    since = (
        "None has ever reported."
        if newest is None
        else f"The last one was heard {duration((now - newest).total_seconds())} ago."
    )
    yield Trouble(
        "warn", "No worker is online.", f"{since} Runs wait in the queue until one starts: make up, or make worker."
    )


def _dispatch() -> Iterator[Trouble]:
    late = Outbox.objects.filter(sent_at=None, due_at__lt=timezone.now() - _UNSENT_AFTER)
    waiting = late.filter(run__in=Run.objects.filter(state__in=WAITING_STATES))
    # Messages are held back on purpose while a device kind is busy: it is late only when nothing at all goes out.
    if waiting.exists() and not _anything_out():
        yield Trouble(
            "warn",
            "Queued runs are not being sent out.",
            "The dispatch process seems to be down: python manage.py dispatch starts it.",
        )


def _anything_out() -> bool:
    return Run.objects.filter(state__in=[State.DISPATCHED, *LEASED_STATES]).exists()
