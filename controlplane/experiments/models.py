"""Experiments: arms x repeats over one frozen plan, and the verdict read from their finished runs."""

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.db import models

from controlplane.ids import new_id
from scheduler_core.spec.isolation import times_words


def experiment_id() -> str:
    return new_id("exp")


class Experiment(models.Model):
    """A submitted experiment spec, frozen."""

    class Status(models.TextChoices):
        QUEUED = "queued", "Queued"
        RUNNING = "running", "Running"
        DECIDED = "decided", "Decided"
        FAILED = "failed", "Failed"
        CANCELLED = "cancelled", "Cancelled"

    id = models.CharField(primary_key=True, max_length=24, default=experiment_id, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="experiments")
    name = models.CharField(max_length=64)
    spec = models.JSONField(help_text="Canonical experiment spec, as submitted.")
    digest = models.CharField(max_length=32)
    workload_version = models.ForeignKey(
        "workloads.WorkloadVersion", on_delete=models.PROTECT, null=True, blank=True, related_name="experiments"
    )
    plan = models.ForeignKey("workloads.ArrivalPlan", on_delete=models.PROTECT, related_name="experiments")
    status = models.CharField(max_length=12, choices=Status.choices, default=Status.QUEUED, db_index=True)
    reason = models.TextField(blank=True, help_text="Why there is no verdict, in one sentence.")
    verdict = models.JSONField(null=True, blank=True)
    notes = models.TextField(blank=True)
    cloned_from = models.ForeignKey("self", on_delete=models.SET_NULL, null=True, blank=True, related_name="clones")
    created_at = models.DateTimeField(auto_now_add=True)
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    decided_at = models.DateTimeField(null=True, blank=True)
    archived_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "id"]

    def __str__(self) -> str:
        return self.name


class Arm(models.Model):
    """One arm: a name and the resolved policy it plays."""

    experiment = models.ForeignKey(Experiment, on_delete=models.CASCADE, related_name="arms")
    name = models.CharField(max_length=64)
    position = models.PositiveIntegerField()
    is_baseline = models.BooleanField(default=False)
    policy = models.JSONField(help_text="Resolved policy spec.")
    policy_version = models.ForeignKey(
        "policies.PolicyVersion", on_delete=models.PROTECT, null=True, blank=True, related_name="arms"
    )

    class Meta:
        ordering = ["position"]
        constraints = [models.UniqueConstraint(fields=["experiment", "name"], name="arm_name_per_experiment")]

    def __str__(self) -> str:
        return self.name


class ArmRun(models.Model):
    """The run that plays one repeat of one arm, in a load sweep at one load."""

    arm = models.ForeignKey(Arm, on_delete=models.CASCADE, related_name="arm_runs")
    repeat = models.PositiveIntegerField()
    load = models.FloatField(null=True, blank=True, help_text="Of a sweep; or how many times over the others send.")
    run = models.OneToOneField("runs.Run", on_delete=models.PROTECT, related_name="arm_run")

    class Meta:
        ordering = ["repeat", "load", "arm__position"]
        constraints = [
            models.UniqueConstraint(
                fields=["arm", "repeat"], condition=models.Q(load=None), name="one_run_per_arm_and_repeat"
            ),
            models.UniqueConstraint(fields=["arm", "repeat", "load"], name="one_run_per_arm_repeat_and_load"),
        ]

    def label(self, spec: Mapping[str, Any]) -> str:
        """Its arm, in a sweep with the load, for isolation with that of the others; ``spec`` is the experiment's."""
        return self.arm.name + load_words(spec, self.load)


def load_words(spec: Mapping[str, Any], load: float | None) -> str:
    """What follows an arm's name where it is played at ``load``."""
    if load is None:
        return ""
    return f" {times_words(load)}" if spec.get("isolation") else f" at {load:g}"
