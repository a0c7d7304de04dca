"""Workloads: list, editing with a preview before saving, versions with their differences and uses."""

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db.models import Count, Q
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from controlplane.access import may_change, require_change, require_person
from controlplane.specs import brief
from controlplane.ui.acting import REFUSALS, act
from controlplane.ui.comparing import differences, other_version
from controlplane.ui.drawing import arrival_curve, quantile_curve
from controlplane.ui.editor import Editor, posted, refuse
from controlplane.ui.listing import Filter, listing
from controlplane.ui.setting import workload_setting
from controlplane.workloads import selectors, services
from controlplane.workloads.models import Workload
from scheduler_core.spec.parse import parse
from scheduler_core.spec.workload import WorkloadSpec
from scheduler_core.spec.yamltext import dump_yaml
from scheduler_core.types.errors import InputError

STARTING = {"profile": "azure-2023-conv", "rate_rps": 2, "requests": 200}


@login_required
@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """All workloads."""
    user = request.user
    filters = [
        Filter("owner", "Owner", {"me": ("me", Q(owner_id=user.pk))}),
        Filter("archived", "Archived", {"yes": ("only archived", Q(archived_at__isnull=False))}),
    ]
    rows = selectors.visible_to(user).prefetch_related("versions__plan").annotate(uses=Count("versions__experiments"))
    rows = rows.order_by("-created_at", "id")
    if request.GET.get("archived") != "yes":
        rows = rows.filter(archived_at=None)
    page = listing(request, rows, search=("name",), filters=filters)
    return render(request, "workloads/list.html", {"page": page})


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    """A new workload, from a form or YAML; ``?trace=`` starts from an imported trace, ``?from=`` from a version."""
    person = require_person(request.user)
    if request.method == "POST":
        editor = _posted(request)
        name = request.POST.get("name", "").strip()
        if editor.acts and editor.action == "save":
            try:
                version = services.create_workload(owner=person, name=name, spec=editor.data)
            except REFUSALS as error:
                refuse(request, editor, error)
            else:
                messages.success(request, f"Workload “{name}” is saved and its plan is frozen.")
                return redirect("workload-version", version.workload_id, version.number)
        return _edit_page(request, editor, name=name, title="New workload")
    return _edit_page(request, Editor(WorkloadSpec, workload_setting(person), _start(request)), title="New workload")


def _found(request: HttpRequest, workload_id: str) -> Workload:
    return get_object_or_404(selectors.visible_to(request.user), pk=workload_id)


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def edit(request: HttpRequest, workload_id: str) -> HttpResponse:
    """The next version of a workload."""
    workload = _found(request, workload_id)
    require_change(request.user, workload)
    person = require_person(request.user)
    title = f"New version of {workload.name}"
    if request.method != "POST":
        newest = workload.versions.first()
        data = brief(WorkloadSpec, newest.spec) if newest else dict(STARTING)
        return _edit_page(request, Editor(WorkloadSpec, workload_setting(person), data), title=title, workload=workload)
    editor = _posted(request)
    if editor.acts and editor.action == "save":
        try:
            version = services.add_version(workload=workload, user=person, spec=editor.data)
        except REFUSALS as error:
            refuse(request, editor, error)
        else:
            messages.success(request, f"Version {version.number} is saved and its plan is frozen.")
            return redirect("workload-version", workload.pk, version.number)
    return _edit_page(request, editor, title=title, workload=workload)


def _posted(request: HttpRequest) -> Editor:
    return posted(request, WorkloadSpec, workload_setting(request.user), lambda data: parse(WorkloadSpec, data))


def _start(request: HttpRequest) -> dict[str, Any]:
    if trace := request.GET.get("trace"):
        return {"trace": {"dataset": trace[:24]}}
    if source := request.GET.get("from"):
        version = selectors.versions_visible_to(request.user).filter(pk=source).first()
        if version is not None:
            return brief(WorkloadSpec, version.spec)
    return dict(STARTING)


def _edit_page(
    request: HttpRequest, editor: Editor, *, title: str, name: str = "", workload: Workload | None = None
) -> HttpResponse:
    """The editor with, when it was asked for, what the workload would offer."""
    preview = None
    if editor.acts and editor.action == "preview":
        try:
            preview = services.preview(spec=editor.data, user=request.user)
        except InputError as error:
            editor.fail(error)
    problems = {item.where: item.message for item in editor.problems}
    context = {
        "editor": editor,
        "title": title,
        "name": name,
        "name_error": problems.get("name", ""),
        "workload": workload,
        **_figures(preview),
    }
    status = 422 if request.method == "POST" and editor.problems and editor.action == "save" else 200
    return render(request, "workloads/edit.html", context, status=status)


def _figures(preview: dict[str, Any] | None) -> dict[str, Any]:
    """A plan's preview with its drawn figures."""
    if not preview:
        return {"preview": None}
    figures = {
        "curve": arrival_curve(preview),
        "prompt_curve": quantile_curve((preview.get("prompt_tokens") or {}).get("quantiles") or {}),
        "output_curve": quantile_curve((preview.get("output_tokens") or {}).get("quantiles") or {}),
    }
    return {"preview": preview, "figures": figures}


@login_required
@require_safe
def latest(request: HttpRequest, workload_id: str) -> HttpResponse:
    """To the newest version."""
    workload = _found(request, workload_id)
    newest = workload.versions.first()
    if newest is None:
        raise Http404
    return redirect("workload-version", workload.pk, newest.number)


@login_required
@require_safe
def version(request: HttpRequest, workload_id: str, number: int) -> HttpResponse:
    """One version: its spec, what it offers, how it differs from the one before or ``?against=N``, where it is used."""
    rows = selectors.versions_visible_to(request.user).select_related("created_by")
    found = get_object_or_404(rows, workload_id=workload_id, number=number)
    versions = list(found.workload.versions.all())
    other = other_version(request, versions, number)
    context = {
        "version": found,
        "versions": versions,
        "other": other,
        "changes": differences(brief(WorkloadSpec, other.spec), brief(WorkloadSpec, found.spec)) if other else [],
        "yaml": dump_yaml(brief(WorkloadSpec, found.spec)),
        "uses": list(found.experiments.select_related("owner").order_by("-created_at")[:20]),
        "may_change": may_change(request.user, found.workload),
        **_figures(found.plan.preview),
    }
    return render(request, "workloads/version.html", context)


@login_required
@require_POST
def archive(request: HttpRequest, workload_id: str) -> HttpResponse:
    """Hide a workload from lists, or bring it back."""
    workload = _found(request, workload_id)
    archived = request.POST.get("archived") != "no"
    person = require_person(request.user)
    done = f"“{workload.name}” is {'archived' if archived else 'back in the lists'}."
    return act(
        request,
        lambda: services.set_archived(workload=workload, user=person, archived=archived),
        done=done,
        then=f"/workloads/{workload.pk}/",
    )
