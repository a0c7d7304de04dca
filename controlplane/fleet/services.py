"""Writes of workers and profiles, and the choice of queue and profile for a target."""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.utils import timezone

from controlplane.access import Person, require_person
from controlplane.accounts.models import User
from controlplane.endpoints.services import require_endpoints
from controlplane.fleet.models import Profile, Worker
from controlplane.fleet.selectors import live_workers
from controlplane.runs.models import Run
from controlplane.runs.services import queue_run
from controlplane.runs.services.queueing import check_quota
from controlplane.specs import parse_name
from scheduler_core.policies.resolving import resolve
from scheduler_core.spec import target as spec
from scheduler_core.spec.parallel import Parallel
from scheduler_core.spec.parse import parse
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.profiles import choose_profile, profile_of
from scheduler_core.spec.server import ServerTarget
from scheduler_core.types.errors import InputError, Problem

WORKER_FORGET_AFTER = timedelta(days=7)
DEVICE_KINDS = ("cpu", "cuda")
PROBE_LIMIT_S = 1800.0  # a launched server may take a third of it to be ready


# --- workers --------------------------------------------------------------------------------------------------------


def register_worker(*, name: str, host: str, pid: int, device_kind: str, device: str) -> Worker:
    """A worker process has started; a restart under the same node name takes the row over."""
    now = timezone.now()
    fields: dict[str, Any] = {"host": host, "pid": pid, "device_kind": device_kind, "device": device}
    fields |= {"started_at": now, "heartbeat_at": now, "stopping_at": None}
    return Worker.objects.update_or_create(name=name, defaults=fields)[0]


def beat_worker(*, name: str, pid: int) -> bool:
    """The worker lives; False when its row was taken over by a newer process or removed."""
    return Worker.objects.filter(name=name, pid=pid).update(heartbeat_at=timezone.now()) == 1


def mark_stopping(*, name: str, pid: int) -> None:
    """The worker was asked to shut down: what it holds is to be given back."""
    Worker.objects.filter(name=name, pid=pid).update(stopping_at=timezone.now())


def set_draining(*, worker: Worker, user: Person, draining: bool) -> Worker:
    """Have a worker take no further runs, or take runs again. Staff only."""
    if not require_person(user).is_staff:
        raise PermissionDenied("only staff may drain a worker")
    worker.draining = draining
    worker.save(update_fields=["draining"])
    return worker


# --- targets --------------------------------------------------------------------------------------------------------


def device_kind_of(target: spec.TargetSpec) -> str:
    """Queue of a target: as it says; ``auto`` goes to CUDA when a worker for it is alive, else to the CPU."""
    if target.torch is None or target.torch.device == "cpu":
        return "cpu"
    if target.torch.device == "cuda":
        return "cuda"
    return "cuda" if live_workers().filter(device_kind="cuda").exists() else "cpu"


def resolve_profile(name: str, where: str = "profile", parallel: Parallel | None = None) -> spec.Profile:
    """The profile a modelled target runs on: the newest of that name, or for ``auto`` the newest one.

    Calibrations of this installation come before bundled reference profiles. `InputError` at ``where`` when there is
    none.
    """
    return choose_profile(name, _measured(), where=where, parallel=parallel)


def profile_beside(target: spec.TorchTarget) -> spec.Profile | None:
    """The newest calibration of this installation that describes ``target``, to set its runs beside; None without."""
    return profile_of(target, _measured())


def _measured() -> Iterator[spec.Profile]:
    """Every calibration, newest first."""
    rows = Profile.objects.order_by("-created_at").iterator()
    return (spec.Profile.model_validate(row.data) for row in rows)


# --- calibration ----------------------------------------------------------------------------------------------------


def start_calibration(*, owner: User, name: str, target: object, quick: bool = False) -> Run:
    """Queue a run that measures a torch target and becomes a profile called ``name``."""
    require_person(owner)
    name = parse_name(name)
    read = parse(spec.TorchTarget, target)
    check_quota(owner=owner, wanted=1)
    return queue_run(
        owner=owner,
        title=f"Calibration {name}: {read.model}",
        job={"name": name, "target": read.canonical(), "quick": quick},
        device_kind=device_kind_of(spec.TargetSpec(torch=read)),
        plan=None,
        kind=Run.Kind.CALIBRATION,
    )


def start_probe(*, owner: User, name: str, server: object, policy: object = None, quick: bool = False) -> Run:
    """Queue a run that probes a server and becomes a profile called ``name``.

    ``policy`` is what a launched server is started with, and says what another does not show itself.
    """
    require_person(owner)
    name = parse_name(name)
    read = parse(ServerTarget, server)
    stated = parse(PolicySpec, policy or {"policy": "as_served"})
    if len(read.given) != 1:
        raise InputError([Problem("server", "give exactly one of url, endpoint and launch")])
    require_endpoints([("server.endpoint", read)])
    resolve(stated)
    check_quota(owner=owner, wanted=1)
    where = read.endpoint or read.launch or read.url
    return queue_run(
        owner=owner,
        title=f"Calibration {name}: {where}",
        job={
            "name": name, "server": read.canonical(), "policy": stated.canonical(), "quick": quick,
            "probe_s": settings.QUICK_PROBE_S if quick else None, "wall_limit_s": PROBE_LIMIT_S,
        },
        device_kind=device_kind_of(spec.TargetSpec(server=read)),
        plan=None,
        kind=Run.Kind.CALIBRATION,
    )  # fmt: skip


def adopt_profile(*, run: Run) -> Profile:
    """Make the profile that a calibration handed in as ``profile.json``; one per run, however often it is called.

    `InputError` when the file is missing or not a profile.
    """
    artifact = run.artifacts.filter(attempt=run.attempt, name="profile.json").first()
    if artifact is None:
        raise InputError([Problem("profile.json", "the calibration handed in no profile")])
    with artifact.file.open("rb") as stream:
        try:
            data = json.load(stream)
        except ValueError as error:
            raise InputError([Problem("profile.json", f"not readable as JSON: {error}")]) from None
    profile = parse(spec.Profile, data).model_copy(update={"name": run.job["name"]})
    fields = {"owner": run.owner, "name": profile.name, "data": profile.canonical()}
    return Profile.objects.update_or_create(run=run, defaults=fields)[0]


def upload_profile(*, owner: User, data: object) -> Profile:
    """Keep a profile that was calibrated elsewhere. `InputError` when it is none."""
    require_person(owner)
    profile = parse(spec.Profile, data)
    parse_name(profile.name)
    return Profile.objects.create(owner=owner, name=profile.name, data=profile.canonical())


def forget_workers(now: datetime) -> int:
    """Remove workers that have been silent for `WORKER_FORGET_AFTER`; how many."""
    return Worker.objects.filter(heartbeat_at__lt=now - WORKER_FORGET_AFTER).delete()[0]
