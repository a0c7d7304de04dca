"""Traces: upload with inspection, and what a reader found in each."""

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db.models import Count, Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from controlplane.access import may_change, require_person
from controlplane.ui.acting import act
from controlplane.ui.editor import Editor
from controlplane.ui.listing import Filter, equals, listing
from controlplane.ui.specform.building import Setting
from controlplane.ui.specform.nodes import Group
from controlplane.ui.specform.reading import read
from controlplane.workloads import selectors, services
from controlplane.workloads.logs import IMPORTED
from scheduler_core.spec.drawing import Drawing
from scheduler_core.spec.workload import TRACE_FORMATS, Trace
from scheduler_core.types.errors import InputError, Problem

# Fields that belong to playing a trace, not to reading it.
_PLAYING = ("dataset", "rows", "rate_rps", "lengths_scale")
_SETTING = Setting(
    hidden=frozenset((Trace, name) for name in _PLAYING), choices={(Trace, "format"): (("", "find out"), *IMPORTED)}
)


@login_required
@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """All imported traces."""
    filters = [
        equals("format", "Format", "format", [(name, name) for name in TRACE_FORMATS]),
        Filter("owner", "Owner", {"me": ("me", Q(owner_id=request.user.pk))}),
    ]
    rows = selectors.datasets_visible_to(request.user).annotate(uses=Count("versions")).order_by("-created_at", "id")
    return render(request, "traces/list.html", {"page": listing(request, rows, search=("name",), filters=filters)})


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    """Import a trace file: taken whole after its reader accepted every row, or refused whole with line numbers.

    A log, or the files of fitted clients, become a trace on the way.
    """
    person = require_person(request.user)
    editor, drawing = Editor(Trace, _SETTING), Editor(Drawing, Setting())
    name = request.POST.get("name", "").strip()
    if request.method == "POST":
        try:
            editor.data = read(Trace, request.POST, _SETTING)
            drawing.data = read(Drawing, request.POST, Setting())
            uploads = request.FILES.getlist("file")
            if not uploads:
                raise InputError([Problem("file", "choose a trace file")])
            file, *more = uploads
            options = {**editor.data, **drawing.data}
            chosen = options.pop("format", None)
            stem = (file.name or "trace").rsplit(".", 1)[0][:100]
            dataset = services.import_trace(
                owner=person, file=file, name=name or stem, format=chosen, options=options, more=more
            )
        except InputError as error:
            editor.fail(error, prefix="options")
            drawing.fail(error, prefix="options")
        else:
            messages.success(request, f"“{dataset.name}” is imported. Check below that it was read as you meant it.")
            return redirect("trace", dataset.pk)
    problems = {item.where: item.message for item in editor.problems}
    tree = editor.tree
    if isinstance(tree, Group):
        tree.more_open = True  # how to read the file is what this page asks
    context = {
        "editor": editor,
        "tree": tree,
        "drawing": drawing.tree,
        "drawing_open": bool(drawing.data),
        "name": name,
        "file_error": problems.get("file"),
        "name_error": problems.get("name"),
    }
    return render(request, "traces/new.html", context, status=422 if editor.problems else 200)


@login_required
@require_safe
def detail(request: HttpRequest, dataset_id: str) -> HttpResponse:
    """What the reader found."""
    dataset = get_object_or_404(selectors.datasets_visible_to(request.user), pk=dataset_id)
    uses = dataset.versions.select_related("workload").order_by("workload__name", "-number")
    context: dict[str, Any] = {
        "dataset": dataset,
        "found": dataset.inspection,
        "uses": list(uses[:20]),
        "may_change": may_change(request.user, dataset),
    }
    return render(request, "traces/detail.html", context)


@login_required
@require_POST
def delete(request: HttpRequest, dataset_id: str) -> HttpResponse:
    """Remove a trace that no workload plays."""
    dataset = get_object_or_404(selectors.datasets_visible_to(request.user), pk=dataset_id)
    person = require_person(request.user)
    done = f"“{dataset.name}” and its file are deleted."
    return act(request, lambda: services.delete_dataset(dataset=dataset, user=person), done=done, then="/traces/")
