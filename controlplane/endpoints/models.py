"""Registered model servers."""

from django.conf import settings
from django.db import models

from controlplane.ids import new_id


def endpoint_id() -> str:
    return new_id("end")


class Endpoint(models.Model):
    """A model server by name: its address, a secret that is never shown again, and how it last answered."""

    id = models.CharField(primary_key=True, max_length=24, default=endpoint_id, editable=False)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="endpoints")
    name = models.CharField(max_length=64, unique=True, help_text="What experiments call it.")
    url = models.CharField(max_length=500)
    sealed_secret = models.TextField(blank=True, editable=False, help_text="Encrypted; empty: no secret is sent.")
    verify_tls = models.BooleanField(default=True)
    health = models.JSONField(default=dict, help_text="How it last answered: ok, sentence, models.")
    checked_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name
