"""The fleet: workers with what they hold, the queues, and the calibrated profiles."""

from typing import Any

from django.contrib.auth.decorators import login_required
from django.db.models import Count, Min
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

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
@require_http_methods(["POST"])
def calibrate(request: HttpRequest) -> HttpResponse:
    """Queue a calibration."""
    person = require_person(request.user)
    name = request.POST.get("name", "").strip() or f"demo-s {timezone.localdate().isoformat()}"
    target = {"model": request.POST.get("model", "").strip() or "demo-s", "device": request.POST.get("device", "auto")}
    made: list[Run] = []

    def start() -> None:
        made.append(services.start_calibration(owner=person, name=name, target=target, quick=True))

    response = act(
        request, start, done="The calibration is queued; its profile appears here when it is done.", then="fleet"
    )
    return redirect("run", made[0].pk) if made else response


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
