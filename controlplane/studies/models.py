"""A study and the experiments that it made."""

from django.conf import settings
from django.db import models

from controlplane.ids import new_id


def study_id() -> str:
    return new_id("std")


class Study(models.Model):
    """A question that takes several experiments: a guided plan, a search with its confirmation, or a prediction with
    the measurement that follows it.
    """

    class Kind(models.TextChoices):
        GUIDED = "guided", "Guided plan"
        SEARCH = "search", "Search"
        PREDICTION = "predict", "Prediction"

    class Status(models.TextChoices):
        RUNNING = "running", "Running"
        ENDED = "ended", "Ended"
        FAILED = "failed", "Failed"
        CANCELLED = "cancelled", "Cancelled"

    id = models.CharField(primary_key=True, max_length=24, default=study_id, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="studies")
    kind = models.CharField(max_length=8, choices=Kind.choices)
    name = models.CharField(max_length=64)
    spec = models.JSONField(help_text="Canonical spec of its kind, as submitted.")
    status = models.CharField(max_length=12, choices=Status.choices, default=Status.RUNNING, db_index=True)
    reason = models.TextField(blank=True, help_text="Why it stands where it does, in one sentence.")
    run = models.OneToOneField(
        "runs.Run", on_delete=models.PROTECT, null=True, blank=True, related_name="study", help_text="Of a search."
    )
    result = models.JSONField(null=True, blank=True, help_text="What a search found, or what was predicted.")
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "id"]
        verbose_name_plural = "studies"

    def __str__(self) -> str:
        return self.name


class Stage(models.Model):
    """One experiment of a study: stage ``number`` of a guided plan, the confirmation of a search (0), or a prediction
    (0) and its measurement (1).
    """

    study = models.ForeignKey(Study, on_delete=models.CASCADE, related_name="stages")
    number = models.PositiveIntegerField()
    experiment = models.OneToOneField("experiments.Experiment", on_delete=models.PROTECT, related_name="stage")

    class Meta:
        ordering = ["number"]
        constraints = [models.UniqueConstraint(fields=["study", "number"], name="one_experiment_per_stage")]

    def __str__(self) -> str:
        return f"{self.study} {self.number + 1}"
