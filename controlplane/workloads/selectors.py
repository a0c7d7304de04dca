"""Reads of traces, workloads and plans."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.core.files.base import File
from django.db.models import QuerySet

from controlplane.access import Person, visible
from controlplane.workloads.models import Dataset, Workload, WorkloadVersion


def visible_to(user: Person) -> QuerySet[Workload]:
    """Workloads that ``user`` may see, newest first, with owner and versions."""
    return visible(Workload.objects.select_related("owner").prefetch_related("versions"), user)


def versions_visible_to(user: Person) -> QuerySet[WorkloadVersion]:
    """Versions that ``user`` may see, with their workload and plan."""
    return visible(WorkloadVersion.objects.select_related("workload", "workload__owner", "plan", "dataset"), user)


def datasets_visible_to(user: Person) -> QuerySet[Dataset]:
    """Imported traces that ``user`` may see, newest first."""
    return visible(Dataset.objects.select_related("owner"), user)


def copy_file(stored: File, target: Path) -> Path:  # type: ignore[type-arg]
    """Copy a stored file to ``target`` (the storage may be an object store with no paths of its own)."""
    with stored.open("rb") as source, target.open("wb") as sink:
        for chunk in source.chunks():
            sink.write(chunk)
    return target


@contextmanager
def local_copy(stored: File) -> Iterator[Path]:  # type: ignore[type-arg]
    """A stored file as a local path for the time of the context."""
    with tempfile.TemporaryDirectory(prefix="headway-") as folder:
        yield copy_file(stored, Path(folder) / "file")
