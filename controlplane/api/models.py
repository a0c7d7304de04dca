"""Stored answers of unsafe requests that carried an Idempotency-Key."""

from django.conf import settings
from django.db import models


class IdempotentAnswer(models.Model):
    """The answer to one keyed request of one person; replayed for a day. ``status`` 0: still in flight."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=200)
    request_digest = models.CharField(max_length=64)
    status = models.PositiveIntegerField(default=0)
    headers = models.JSONField(default=dict)
    body = models.BinaryField(default=bytes)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "key"], name="one_answer_per_key")]
