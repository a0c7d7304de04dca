"""Traffic: imported traces, workloads with their versions, and the arrival plans frozen from them."""

from django.conf import settings
from django.db import models

from controlplane.ids import new_id


def dataset_id() -> str:
    return new_id("trc")


def workload_id() -> str:
    return new_id("wkl")


def version_id() -> str:
    return new_id("wkv")


class Dataset(models.Model):
    """An imported trace file, kept byte for byte, with what its reader found."""

    id = models.CharField(primary_key=True, max_length=24, default=dataset_id, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="datasets")
    name = models.CharField(max_length=100)
    format = models.CharField(max_length=20)
    options = models.JSONField(default=dict, help_text="Columns, unit, block size and rules given at import.")
    file = models.FileField(upload_to="datasets/%Y/%m/", max_length=200)
    sha256 = models.CharField(max_length=64)
    bytes = models.PositiveBigIntegerField()
    inspection = models.JSONField(help_text="What the reader found, as `headway trace inspect` prints it.")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-created_at", "id"]

    def __str__(self) -> str:
        return self.name


class Workload(models.Model):
    """A named line of workload versions."""

    id = models.CharField(primary_key=True, max_length=24, default=workload_id, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="workloads")
    name = models.CharField(max_length=64)
    created_at = models.DateTimeField(auto_now_add=True)
    archived_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "id"]
        constraints = [models.UniqueConstraint(fields=["owner", "name"], name="workload_name_per_owner")]

    def __str__(self) -> str:
        return self.name


class ArrivalPlan(models.Model):
    """A frozen workload: the file that every arm replays. Found by digest, stored once."""

    digest = models.CharField(primary_key=True, max_length=32)
    file = models.FileField(upload_to="plans/", max_length=200)
    requests = models.PositiveIntegerField()
    prompt_tokens = models.PositiveBigIntegerField()
    output_tokens = models.PositiveBigIntegerField()
    span_s = models.FloatField()
    preview = models.JSONField(default=dict, help_text="Arrival curve, length quantiles and notes for the pages.")
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"{self.digest[:4]}…{self.digest[-2:]}"


class WorkloadVersion(models.Model):
    """One immutable spec of a workload; an edit makes the next version."""

    id = models.CharField(primary_key=True, max_length=24, default=version_id, editable=False)
    workload = models.ForeignKey(Workload, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    spec = models.JSONField()
    digest = models.CharField(max_length=32)
    plan = models.ForeignKey(ArrivalPlan, on_delete=models.PROTECT, related_name="versions")
    dataset = models.ForeignKey(Dataset, on_delete=models.PROTECT, null=True, blank=True, related_name="versions")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-number"]
        constraints = [models.UniqueConstraint(fields=["workload", "number"], name="workload_version_number")]

    def __str__(self) -> str:
        return f"{self.workload} v{self.number}"
