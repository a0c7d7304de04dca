"""Reads of evidence. Who may see a run may see its evidence; callers get the run from its selectors."""

from typing import Any

from django.core.files.base import File
from django.db.models import QuerySet

from controlplane.evidence.models import Artifact, SampleChunk
from controlplane.evidence.services import last_seq
from controlplane.runs.models import Run

__all__ = ["artifacts", "last_seq", "open_artifact", "samples_after"]


def samples_after(*, run: Run, attempt: int, seq: int, limit: int = 1000) -> list[dict[str, Any]]:
    """Stored samples of ``attempt`` numbered above ``seq``, in order, at most ``limit``; each carries its ``seq``."""
    found: list[dict[str, Any]] = []
    chunks = SampleChunk.objects.filter(run=run, attempt=attempt, last_seq__gt=seq).order_by("first_seq")
    for chunk in chunks.iterator(chunk_size=50):
        found += [sample for sample in chunk.samples if sample["seq"] > seq]
        if len(found) >= limit:
            break
    return found[:limit]


def artifacts(*, run: Run, attempt: int | None = None) -> QuerySet[Artifact]:
    """Finished files of an attempt, by default the current one."""
    return Artifact.objects.filter(run=run, attempt=run.attempt if attempt is None else attempt)


def open_artifact(*, run: Run, attempt: int, name: str) -> tuple[Artifact, File] | None:  # type: ignore[type-arg]
    """An artifact's row and open file, found by its row alone: no caller-made path reaches the storage."""
    artifact = Artifact.objects.filter(run=run, attempt=attempt, name=name).first()
    return None if artifact is None else (artifact, artifact.file.open("rb"))
