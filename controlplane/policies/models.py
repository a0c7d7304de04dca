"""Policies with their immutable versions."""

from django.conf import settings
from django.db import models

from controlplane.ids import new_id


def policy_id() -> str:
    return new_id("pol")


def version_id() -> str:
    return new_id("plv")


class Policy(models.Model):
    """A named line of policy versions."""

    id = models.CharField(primary_key=True, max_length=24, default=policy_id, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="policies")
    name = models.CharField(max_length=64)
    created_at = models.DateTimeField(auto_now_add=True)
    archived_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "id"]
        verbose_name_plural = "policies"
        constraints = [models.UniqueConstraint(fields=["owner", "name"], name="policy_name_per_owner")]

    def __str__(self) -> str:
        return self.name


class PolicyVersion(models.Model):
    """One immutable policy spec: preset and the four sections."""

    id = models.CharField(primary_key=True, max_length=24, default=version_id, editable=False)
    policy = models.ForeignKey(Policy, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    spec = models.JSONField(help_text="As written.")
    resolved = models.JSONField(help_text="With every default of the preset filled in.")
    digest = models.CharField(max_length=32)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-number"]
        constraints = [models.UniqueConstraint(fields=["policy", "number"], name="policy_version_number")]

    def __str__(self) -> str:
        return f"{self.policy} v{self.number}"
