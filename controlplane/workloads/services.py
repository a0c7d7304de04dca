"""Writes of traces, workloads and plans."""

import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.files.base import File
from django.core.files.storage import default_storage
from django.db import IntegrityError, transaction
from django.utils import timezone

from controlplane.access import Person, require_change, require_person
from controlplane.accounts.models import User
from controlplane.errors import ConflictError
from controlplane.ids import new_id
from controlplane.specs import parse_name
from controlplane.workloads.logs import CLIENTS, FORMATS, Upload, convert
from controlplane.workloads.models import ArrivalPlan, Dataset, Workload, WorkloadVersion
from controlplane.workloads.selectors import datasets_visible_to, local_copy
from scheduler_core.spec.drawing import Drawing
from scheduler_core.spec.parse import parse
from scheduler_core.spec.workload import Trace, WorkloadSpec
from scheduler_core.types.errors import InputError, Problem
from scheduler_core.workload.freeze import freeze as freeze_plan
from scheduler_core.workload.plan import ArrivalPlan as FrozenPlan
from scheduler_core.workload.preview import preview as describe
from scheduler_core.workload.traces.inspection import inspect
from scheduler_core.workload.traces.reader import read_trace

TRACE_OPTIONS = ("columns", "time_unit", "block_size", "same_instant", "zero_output")
OPTIONS = (*TRACE_OPTIONS, *Drawing.model_fields)


# --- traces ---------------------------------------------------------------------------------------------------------


def import_trace(
    *,
    owner: User,
    file: File,  # type: ignore[type-arg]
    name: str,
    format: str | None = None,  # noqa: A002
    options: dict[str, Any] | None = None,
    more: Sequence[File] = (),  # type: ignore[type-arg]
) -> Dataset:
    """Keep a trace file byte for byte after its reader accepted it as a whole; `InputError` else, and nothing is kept.

    A ``format`` of `controlplane.workloads.logs.FORMATS` is a log, or the files of fitted clients (``more`` are the
    others): the trace made of it is kept, the log is not. ``options`` are those of `scheduler_core.spec.workload.Trace`
    that say how to read a trace (columns, time_unit, block_size, same_instant, zero_output), and for clients those of
    `scheduler_core.spec.drawing.Drawing`. The stored name is made here; a file's own name is never used.
    """
    require_person(owner)
    name = _dataset_name(name)
    with tempfile.TemporaryDirectory(prefix="headway-") as folder:
        trace, inspection = _inspect([file, *more], format, options or {}, Path(folder))
        assert trace.file is not None  # what was inspected lies there
        path = Path(trace.file)
        dataset = Dataset(owner=owner, name=name, format=inspection["format"], inspection=inspection)
        dataset.options = trace.model_dump(mode="json", include=set(TRACE_OPTIONS), exclude_none=True)
        dataset.sha256, dataset.bytes = inspection["sha256"], path.stat().st_size
        with path.open("rb") as stream:
            dataset.file.save(f"{new_id('file')}.trace", File(stream), save=False)
        try:
            dataset.save(force_insert=True)
        except Exception:
            default_storage.delete(str(dataset.file.name))
            raise
    return dataset


def inspect_trace(
    *,
    file: File,  # type: ignore[type-arg]
    format: str | None = None,  # noqa: A002
    options: dict[str, Any] | None = None,
    more: Sequence[File] = (),  # type: ignore[type-arg]
) -> dict[str, Any]:
    """What the reader finds in a trace or a log, without keeping it; `InputError` when it is refused."""
    with tempfile.TemporaryDirectory(prefix="headway-") as folder:
        return _inspect([file, *more], format, options or {}, Path(folder))[1]


def _dataset_name(name: str) -> str:
    name = name.strip()
    if not name or len(name) > 100 or not name.isprintable():
        raise InputError([Problem("name", "give the trace a name of 1 to 100 printable characters")])
    return name


def _receive(file: File, target: Path, held: int) -> Upload:  # type: ignore[type-arg]
    """Copy an upload to ``target``; it and the ``held`` bytes of those before it are under the size limit."""
    digest, size = hashlib.sha256(), 0
    with target.open("wb") as sink:
        for chunk in file.chunks():
            size += len(chunk)
            if held + size > settings.TRACE_UPLOAD_MAX_BYTES:
                limit = settings.TRACE_UPLOAD_MAX_BYTES // 2**20
                raise InputError([Problem("file", f"larger than {limit} MiB (HEADWAY_TRACE_MAX_MB)")])
            digest.update(chunk)
            sink.write(chunk)
    if size == 0:
        raise InputError([Problem("file", "the file is empty")])
    return Upload(target, Path(str(file.name or "file")).name[:200], digest.hexdigest())


def _inspect(
    files: Sequence[File],  # type: ignore[type-arg]
    kind: str | None,
    options: dict[str, Any],
    folder: Path,
) -> tuple[Trace, dict[str, Any]]:
    """How to read what was uploaded, a log once it is a trace, and what its reader finds."""
    unknown = [key for key in options if key not in OPTIONS]
    if unknown:
        known = ", ".join(OPTIONS)
        raise InputError([Problem(f"options.{key}", f"unknown option; known: {known}") for key in unknown])
    uploads: list[Upload] = []
    for number, file in enumerate(files):
        held = sum(item.path.stat().st_size for item in uploads)
        uploads.append(_receive(file, folder / f"upload-{number}", held))
    if kind in FORMATS:
        made = convert(uploads, kind, options, folder)
        try:
            trace, found = _read(made.path, made.options)
        except InputError as error:
            raise made.named(error) from None
        return trace, {**found, "origin": made.origin}
    options = {"format": kind or None, **options}
    _only_a_trace(uploads, options)
    return _read(uploads[0].path, options)


def _read(path: Path, options: dict[str, Any]) -> tuple[Trace, dict[str, Any]]:
    trace = parse(Trace, {"file": str(path), **options})
    given = trace.model_dump(exclude={"file"}, exclude_unset=True)
    return trace, inspect(path, **given).canonical()


def _only_a_trace(uploads: Sequence[Upload], options: dict[str, Any]) -> None:
    problems = [
        Problem(f"options.{name}", f"belongs to format {CLIENTS}") for name in options if name in Drawing.model_fields
    ]
    if len(uploads) > 1:
        problems.append(Problem("file", f"a trace is one file, here are {len(uploads)}"))
    if problems:
        raise InputError(problems)


# --- plans ----------------------------------------------------------------------------------------------------------


def freeze(*, spec: object, user: Person) -> ArrivalPlan:
    """The arrival plan of a workload spec, stored once by digest.

    Imported traces (``trace: {dataset: trc_...}``) are found among those ``user`` may see. A server reads no path of
    its own on a user's word, so ``trace: {file: ...}`` is refused.
    """
    read = parse(WorkloadSpec, spec)
    frozen = _freeze(read, user)
    known = ArrivalPlan.objects.filter(pk=frozen.digest).first()
    return known or _store(frozen)


def preview(*, spec: object, user: Person) -> dict[str, Any]:
    """What a workload spec would offer (arrival curve, length quantiles, notes), and its canonical form and digest."""
    read = parse(WorkloadSpec, spec)
    frozen = _freeze(read, user)
    return {"spec": read.canonical(), "digest": read.digest(), "plan_digest": frozen.digest, **describe(frozen)}


def _freeze(spec: WorkloadSpec, user: Person) -> FrozenPlan:
    if spec.trace is None:
        return freeze_plan(spec)
    if spec.trace.file is not None:
        message = "a path on your machine is not readable here: import the file first, then write dataset: trc_..."
        raise InputError([Problem("trace.file", message)])
    dataset = dataset_of(spec, user)
    assert dataset is not None  # a trace without a file has a dataset
    # What the spec says goes before what was said at import.
    given = spec.trace.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    trace = parse(Trace, {"format": dataset.format, **dataset.options, **given})
    with local_copy(dataset.file) as path:
        return freeze_plan(spec.model_copy(update={"trace": trace}), trace=read_trace(path, trace))


def dataset_of(spec: WorkloadSpec, user: Person) -> Dataset | None:
    """The imported trace that a spec plays, or None; `InputError` when there is none of that id for ``user``."""
    if spec.trace is None or spec.trace.dataset is None:
        return None
    dataset = datasets_visible_to(user).filter(pk=spec.trace.dataset).first()
    if dataset is None:
        raise InputError([Problem("trace.dataset", f"there is no imported trace {spec.trace.dataset!r} here")])
    return dataset


def _store(frozen: FrozenPlan) -> ArrivalPlan:
    """Write the plan's file, then its row; of two writers of one digest the first row stays."""
    description = describe(frozen)
    with tempfile.TemporaryDirectory(prefix="headway-") as folder:
        path = Path(folder) / "plan"
        frozen.write(path)
        with path.open("rb") as stream:
            name = default_storage.save(f"plans/{frozen.digest}.jsonl.gz", File(stream))
    fields = {
        "file": name,
        "requests": len(frozen.requests),
        "prompt_tokens": frozen.prompt_tokens,
        "output_tokens": frozen.output_tokens,
        "span_s": description["span_s"],
        "preview": description,
    }
    plan, created = ArrivalPlan.objects.get_or_create(pk=frozen.digest, defaults=fields)
    if not created and plan.file.name != name:
        default_storage.delete(name)
    return plan


# --- workloads ------------------------------------------------------------------------------------------------------


def create_workload(*, owner: User, name: str, spec: object) -> WorkloadVersion:
    """A new workload with its first version, frozen. `InputError` for a bad spec or name, or a name in use."""
    require_person(owner)
    name = parse_name(name)
    read = parse(WorkloadSpec, spec)
    plan = freeze(spec=read, user=owner)
    try:
        with transaction.atomic():
            workload = Workload.objects.create(owner=owner, name=name)
            return _version(workload, owner, read, plan)
    except IntegrityError:
        raise InputError([Problem("name", f"you already have a workload named {name!r}")]) from None


def add_version(*, workload: Workload, user: User, spec: object) -> WorkloadVersion:
    """The next version of a workload; the newest one itself when the spec is equal to it."""
    require_change(user, workload)
    read = parse(WorkloadSpec, spec)
    plan = freeze(spec=read, user=user)
    newest = workload.versions.first()
    if newest is not None and newest.digest == read.digest():
        return newest
    try:
        with transaction.atomic():
            return _version(workload, user, read, plan)
    except IntegrityError:
        raise ConflictError("another version was added at that moment; look at it and try again") from None


def set_archived(*, workload: Workload, user: User, archived: bool) -> Workload:
    """Hide from, or bring back to, lists and pickers; experiments that used it keep it."""
    require_change(user, workload)
    workload.archived_at = timezone.now() if archived else None
    workload.save(update_fields=["archived_at"])
    return workload


def delete_dataset(*, dataset: Dataset, user: User) -> None:
    """Remove an imported trace and its file. `ConflictError` while a workload version plays it."""
    require_change(user, dataset)
    if dataset.versions.exists():
        raise ConflictError("a workload plays this trace; it cannot be deleted")
    name = str(dataset.file.name)
    with transaction.atomic():
        dataset.delete()
        transaction.on_commit(lambda: default_storage.delete(name))


def _version(workload: Workload, user: User, spec: WorkloadSpec, plan: ArrivalPlan) -> WorkloadVersion:
    number = (workload.versions.values_list("number", flat=True).first() or 0) + 1
    return WorkloadVersion.objects.create(
        workload=workload,
        number=number,
        spec=spec.canonical(),
        digest=spec.digest(),
        plan=plan,
        dataset=dataset_of(spec, user),
        created_by=user,
    )
