"""Runs, their attempts, the outbox that rings the doorbell, and the log of transitions.

The database owns run state. `controlplane.runs.lifecycle` holds the states and the legal transitions as data.
"""

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from controlplane.ids import new_id
from controlplane.runs.lifecycle import LEASED_STATES, State


def run_id() -> str:
    return new_id("run")


class Run(models.Model):
    """One execution of one arm (or a calibration, or a search), self-contained: it knows nothing of experiments.

    ``job`` holds what `scheduler_core.spec.job.RunJob` needs except paths. ``attempt`` is the current attempt number:
    every write that comes from a worker carries it and is refused when it is not current.
    """

    class Kind(models.TextChoices):
        ARM = "arm", "Arm of an experiment"
        CALIBRATION = "calibration", "Calibration"
        SEARCH = "search", "Search for policies"

    id = models.CharField(primary_key=True, max_length=24, default=run_id, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="runs")
    kind = models.CharField(max_length=12, choices=Kind.choices, default=Kind.ARM)
    title = models.CharField(max_length=160)
    device_kind = models.CharField(max_length=12, default="cpu", help_text="Queue: cpu or cuda.")
    job = models.JSONField()
    plan = models.ForeignKey("workloads.ArrivalPlan", on_delete=models.PROTECT, null=True, related_name="runs")

    state = models.CharField(max_length=12, choices=State.choices, default=State.QUEUED, db_index=True)
    reason = models.TextField(blank=True, help_text="Why it is in this state, in one sentence.")
    attempt = models.PositiveIntegerField(default=1)
    max_attempts = models.PositiveIntegerField(default=3)
    place = models.PositiveBigIntegerField(default=0, db_index=True, help_text="Order in the queue; smaller is first.")

    lease_worker = models.CharField(max_length=120, blank=True)
    lease_device = models.CharField(max_length=120, blank=True, help_text="Host and device held by this run.")
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    cancel_requested_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )

    created_at = models.DateTimeField(auto_now_add=True)
    dispatched_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    done = models.PositiveIntegerField(default=0)
    total = models.PositiveIntegerField(default=0)
    eta_s = models.FloatField(null=True, blank=True)
    summary = models.JSONField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "id"]
        indexes = [models.Index(fields=["state", "lease_expires_at"]), models.Index(fields=["state", "place"])]
        constraints = [
            models.UniqueConstraint(
                fields=["lease_device"], condition=Q(state__in=LEASED_STATES), name="one_run_per_device"
            )
        ]

    def __str__(self) -> str:
        return self.title


class Attempt(models.Model):
    """One execution of a run under a lease; old attempts keep their evidence."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="attempts")
    number = models.PositiveIntegerField()
    worker = models.CharField(max_length=120)
    started_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=12, blank=True)
    reason = models.TextField(blank=True)
    log_tail = models.TextField(blank=True, help_text="Last lines of the run process's standard error.")

    class Meta:
        ordering = ["number"]
        constraints = [models.UniqueConstraint(fields=["run", "number"], name="attempt_number_per_run")]


class Outbox(models.Model):
    """A message to be sent for a run; written in the transaction that queued it, sent by ``dispatch``."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="outbox")
    attempt = models.PositiveIntegerField()
    created_at = models.DateTimeField(auto_now_add=True)
    due_at = models.DateTimeField(default=timezone.now, help_text="Not sent before; pushed ahead after a failure.")
    sent_at = models.DateTimeField(null=True, blank=True, db_index=True)
    sends = models.PositiveIntegerField(default=0)

    class Meta:
        verbose_name_plural = "outbox"
        constraints = [models.UniqueConstraint(fields=["run", "attempt"], name="one_message_per_attempt")]


class Transition(models.Model):
    """One change of state: who, when, from where to where, why. Only appended."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="transitions")
    attempt = models.PositiveIntegerField()
    at = models.DateTimeField(auto_now_add=True)
    before = models.CharField(max_length=12)
    after = models.CharField(max_length=12)
    actor = models.CharField(max_length=150)
    reason = models.TextField(blank=True)

    class Meta:
        ordering = ["id"]
