"""Endpoints: register a model server, see how it answers, and try it with the raw exchange in view."""

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from controlplane.access import may_change, require_person
from controlplane.endpoints import selectors, services
from controlplane.endpoints.models import Endpoint
from controlplane.ui.acting import act
from scheduler_core.types.errors import InputError


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def index(request: HttpRequest) -> HttpResponse:
    """All endpoints; a form for one more."""
    person = require_person(request.user)
    values = {name: request.POST.get(name, "").strip() for name in ("name", "url")}
    problems: dict[str, str] = {}
    if request.method == "POST":
        try:
            made = services.register(
                owner=person,
                **values,
                secret=request.POST.get("secret", ""),
                verify_tls=request.POST.get("verify_tls") == "on",
            )
        except InputError as error:
            problems = {item.where: item.message for item in error.problems}
        else:
            messages.success(request, f"“{made.name}” is registered; its secret is not shown again.")
            return redirect("endpoint", made.pk)
    rows = selectors.visible_to(request.user)[:200]
    context = {"endpoints": rows, "values": values, "problems": problems}
    return render(request, "endpoints/list.html", context)


@login_required
@require_safe
def detail(request: HttpRequest, endpoint_id: str) -> HttpResponse:
    """One endpoint."""
    return _page(request, _found(request, endpoint_id), {})


@login_required
@require_POST
def check(request: HttpRequest, endpoint_id: str) -> HttpResponse:
    """Ask the server for its models."""
    endpoint = _found(request, endpoint_id)
    services.check(endpoint=endpoint, user=request.user)
    return redirect("endpoint", endpoint.pk)


@login_required
@require_POST
def try_out(request: HttpRequest, endpoint_id: str) -> HttpResponse:
    """Have the server answer once, and show the exchange as it went over the wire."""
    endpoint = _found(request, endpoint_id)
    model = request.POST.get("model", "").strip()
    exchange = services.try_out(endpoint=endpoint, user=request.user, model=model)
    return _page(request, endpoint, {"exchange": exchange})


@login_required
@require_POST
def change(request: HttpRequest, endpoint_id: str) -> HttpResponse:
    """Replace the secret."""
    endpoint = _found(request, endpoint_id)
    return act(
        request,
        lambda: services.change(endpoint=endpoint, user=request.user, secret=request.POST.get("secret", "")),
        done="The secret is replaced.",
        then=reverse("endpoint", args=[endpoint.pk]),
    )


@login_required
@require_POST
def remove(request: HttpRequest, endpoint_id: str) -> HttpResponse:
    """Remove an endpoint and its secret."""
    endpoint = _found(request, endpoint_id)
    services.remove(endpoint=endpoint, user=request.user)
    messages.success(request, f"“{endpoint.name}” and its secret are removed.")
    return redirect("endpoints")


def _found(request: HttpRequest, endpoint_id: str) -> Endpoint:
    return get_object_or_404(selectors.visible_to(request.user), pk=endpoint_id)


def _page(request: HttpRequest, endpoint: Endpoint, more: dict[str, Any]) -> HttpResponse:
    context = {"endpoint": endpoint, "may_change": may_change(request.user, endpoint), **more}
    return render(request, "endpoints/detail.html", context)
