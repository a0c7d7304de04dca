"""The fleet: workers with what they hold, the queues, and the calibrated profiles."""

import re
from collections.abc import Callable
from typing import Any

from django.contrib.auth.decorators import login_required
from django.db.models import Count, Min
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from controlplane.access import require_person
from controlplane.fleet import selectors, services
from controlplane.runs.lifecycle import LEASED_STATES, WAITING_STATES
from controlplane.runs.models import Run
from controlplane.ui.acting import act
from controlplane.ui.comparing import differences
from scheduler_core.spec.yamltext import dump_yaml


@login_required
@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """Workers, queues and profiles."""
    now = timezone.now()
    held = {
        run.lease_worker: run
        for run in Run.objects.filter(state__in=LEASED_STATES).only(
            "id", "title", "lease_worker", "owner_id", "done", "total"
        )
    }
    workers = [
        {"worker": worker, "status": worker.status(now), "run": held.get(worker.name)}
        for worker in selectors.workers_visible_to(request.user)
    ]
    queues = (
        Run.objects.filter(state__in=WAITING_STATES)
        .values("device_kind")
        .annotate(waiting=Count("id"), oldest=Min("created_at"))
        .order_by("device_kind")
    )
    profiles = selectors.profiles_visible_to(request.user).defer("run__job")
    context = {"workers": workers, "queues": list(queues), "profiles": list(profiles[:100])}
    return render(request, "fleet/index.html", context)


@login_required
@require_POST
def calibrate(request: HttpRequest) -> HttpResponse:
    """Queue a calibration of the engine."""
    person = require_person(request.user)
    name = request.POST.get("name", "").strip() or f"demo-s {timezone.localdate().isoformat()}"
    target = {"model": request.POST.get("model", "").strip() or "demo-s", "device": request.POST.get("device", "auto")}
    return _queued(
        request, lambda: services.start_calibration(owner=person, name=name, target=target, quick=True), then="fleet"
    )


@login_required
@require_POST
def probe(request: HttpRequest) -> HttpResponse:
    """Queue a calibration of a server, from outside."""
    person = require_person(request.user)
    where = request.POST.get("where", "").strip()
    kind = request.POST.get("kind", "url")
    name = request.POST.get("name", "").strip() or f"{where.partition('://')[2] or where} {timezone.localdate()}"
    quick = request.POST.get("length") == "quick"
    server = {kind if kind in ("endpoint", "launch") else "url": where or None}
    return _queued(
        request,
        lambda: services.start_probe(
            owner=person, name=_as_name(name), server=server, policy=_stated(request), quick=quick
        ),
        then="fleet",
    )


def _queued(request: HttpRequest, start: Callable[[], Run], *, then: str) -> HttpResponse:
    """Queue a calibration and go to its run, or back with what hinders it."""
    made: list[Run] = []
    done = "The calibration is queued; its profile appears among the fleet's when it is done."
    response = act(request, lambda: made.append(start()), done=done, then=then)
    return redirect("run", made[0].pk) if made else response


def _as_name(text: str) -> str:
    """``text`` as a name: an address has signs that a name cannot have."""
    return re.sub(r"[^A-Za-z0-9 ._-]+", "-", text)[:64].strip()


def _stated(request: HttpRequest) -> dict[str, Any]:
    """The policy that the form says of the server: numbers that were filled in."""
    policy: dict[str, Any] = {"policy": request.POST.get("policy", "").strip() or "as_served"}
    for field in ("batch.token_budget", "batch.size", "cache.block_size", "cache.blocks"):
        if value := request.POST.get(field, "").strip():
            section, _, key = field.partition(".")
            policy.setdefault(section, {})[key] = value
    return policy


@login_required
@require_POST
def drain(request: HttpRequest) -> HttpResponse:
    """Have a worker take no further runs, or take runs again."""
    worker = get_object_or_404(selectors.workers_visible_to(request.user), pk=request.POST.get("worker", ""))
    draining = request.POST.get("draining") != "no"
    done = f"{worker.name} {'finishes its run and takes no other' if draining else 'takes runs again'}."
    return act(
        request,
        lambda: services.set_draining(worker=worker, user=request.user, draining=draining),
        done=done,
        then="fleet",
    )


@login_required
@require_safe
def profile(request: HttpRequest, profile_id: str) -> HttpResponse:
    """A calibrated profile in full."""
    found = get_object_or_404(selectors.profiles_visible_to(request.user), pk=profile_id)
    others = list(selectors.profiles_visible_to(request.user).exclude(pk=found.pk).filter(name=found.name)[:1])
    context: dict[str, Any] = {
        "profile": found,
        "data": found.data,
        "yaml": dump_yaml(found.data),
        "other": others[0] if others else None,
        "changes": differences(others[0].data, found.data) if others else [],
    }
    return render(request, "fleet/profile.html", context)
