"""Workers and the calibrated profiles of the devices they drive."""

from datetime import datetime

from django.conf import settings
from django.db import models
from django.utils import timezone

from controlplane.ids import new_id


def profile_id() -> str:
    return new_id("prf")


class Worker(models.Model):
    """A Celery worker by its node name; dead when its heartbeat is old."""

    name = models.CharField(primary_key=True, max_length=120)
    host = models.CharField(max_length=120)
    pid = models.PositiveIntegerField()
    device_kind = models.CharField(max_length=12)
    device = models.CharField(max_length=120, help_text="What one run at a time is held on, such as host/cpu:0.")
    fingerprint = models.JSONField(default=dict)
    draining = models.BooleanField(default=False, help_text="Finishes its run and takes no other.")
    stopping_at = models.DateTimeField(null=True, blank=True, help_text="When it was asked to shut down.")
    started_at = models.DateTimeField()
    heartbeat_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.name

    def status(self, now: datetime | None = None) -> str:
        """``ready``, ``draining``, ``stopping``, or ``dead`` when its heartbeat is old."""
        if (now or timezone.now()) - self.heartbeat_at > settings.WORKER_DEAD_AFTER:
            return "dead"
        if self.stopping_at is not None:
            return "stopping"
        return "draining" if self.draining else "ready"


class Profile(models.Model):
    """A calibrated device-and-model pair, as `scheduler_core.spec.target.Profile`."""

    id = models.CharField(primary_key=True, max_length=24, default=profile_id, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="profiles")
    name = models.CharField(max_length=100)
    data = models.JSONField()
    run = models.ForeignKey("runs.Run", on_delete=models.SET_NULL, null=True, blank=True, related_name="profiles")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-created_at", "id"]

    def __str__(self) -> str:
        return self.name
