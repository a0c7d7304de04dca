"""Reads of workers and profiles."""

from datetime import datetime

from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone

from controlplane.access import Person, visible
from controlplane.fleet.models import Profile, Worker


def workers_visible_to(user: Person) -> QuerySet[Worker]:
    """Workers that ``user`` may see."""
    return visible(Worker.objects.order_by("name"), user)


def profiles_visible_to(user: Person) -> QuerySet[Profile]:
    """Profiles that ``user`` may see, newest first."""
    return visible(Profile.objects.select_related("owner", "run"), user)


def live_workers(now: datetime | None = None) -> QuerySet[Worker]:
    """Workers whose heartbeat is fresh and that are not shutting down."""
    oldest = (now or timezone.now()) - settings.WORKER_DEAD_AFTER
    return Worker.objects.filter(heartbeat_at__gte=oldest, stopping_at=None)


def missing_worker(device_kind: str) -> str:
    """Why runs of a device kind would only wait, in one sentence; empty when a worker takes them."""
    workers = live_workers().filter(device_kind=device_kind)
    if workers.filter(draining=False).exists():
        return ""
    if workers.exists():
        return f"every {device_kind} worker is draining, so its runs wait until one takes runs again"
    return f"no worker for {device_kind} is online, so its runs wait until one is started"
