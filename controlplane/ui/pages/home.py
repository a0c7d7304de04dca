"""The first page: what this is, what runs now, what was decided last."""

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_POST, require_safe

from controlplane.access import require_person
from controlplane.experiments import selectors
from controlplane.experiments.models import Experiment
from controlplane.experiments.services import submit_experiment
from controlplane.ui.acting import act
from controlplane.ui.first import first_experiment_text
from scheduler_core.spec.yamltext import load_mapping

_OPEN = (Experiment.Status.QUEUED, Experiment.Status.RUNNING)
SHOWN = 6


@login_required
@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """Overview."""
    experiments = selectors.visible_to(request.user).filter(archived_at=None)
    context = {
        "running": list(experiments.filter(status__in=_OPEN)[:SHOWN]),
        "latest": list(experiments.exclude(status__in=_OPEN).order_by("-decided_at", "-created_at")[:SHOWN]),
        "first_text": first_experiment_text(),
        "origin": f"{request.scheme}://{request.get_host()}",
    }
    return render(request, "home.html", context)


@login_required
@require_POST
def run_first(request: HttpRequest) -> HttpResponse:
    """Submit the bundled small experiment."""
    person = require_person(request.user)
    made: list[Experiment] = []

    def submit() -> None:
        made.append(submit_experiment(owner=person, data=load_mapping(first_experiment_text())))

    response = act(request, submit, done="The first experiment is queued. Watch it run below.", then="home")
    if made:
        response["Location"] = f"/experiments/{made[0].pk}/"
    return response
