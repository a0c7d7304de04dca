"""Stored evidence of attempts: sealed segments, artifacts, and the live sample log."""

from django.db import models


class Segment(models.Model):
    """A closed, numbered part of an attempt's record stream, uploaded through the storage interface."""

    run = models.ForeignKey("runs.Run", on_delete=models.CASCADE, related_name="segments")
    attempt = models.PositiveIntegerField()
    number = models.PositiveIntegerField()
    file = models.FileField(max_length=200)
    bytes = models.PositiveBigIntegerField()
    records = models.PositiveIntegerField()
    sha256 = models.CharField(max_length=64)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["attempt", "number"]
        constraints = [models.UniqueConstraint(fields=["run", "attempt", "number"], name="segment_number")]


class Artifact(models.Model):
    """A finished file of an attempt: Parquet tables, summary, audit, profile."""

    run = models.ForeignKey("runs.Run", on_delete=models.CASCADE, related_name="artifacts")
    attempt = models.PositiveIntegerField()
    name = models.CharField(max_length=64)
    file = models.FileField(max_length=200)
    bytes = models.PositiveBigIntegerField()
    sha256 = models.CharField(max_length=64)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["attempt", "name"]
        constraints = [models.UniqueConstraint(fields=["run", "attempt", "name"], name="artifact_name")]


class SampleChunk(models.Model):
    """Consecutive live samples ``first_seq .. last_seq`` of an attempt, written together once a second."""

    run = models.ForeignKey("runs.Run", on_delete=models.CASCADE, related_name="sample_chunks")
    attempt = models.PositiveIntegerField()
    first_seq = models.PositiveIntegerField()
    last_seq = models.PositiveIntegerField()
    samples = models.JSONField()

    class Meta:
        ordering = ["attempt", "first_seq"]
        constraints = [models.UniqueConstraint(fields=["run", "attempt", "first_seq"], name="sample_chunk_start")]
