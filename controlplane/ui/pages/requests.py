"""Single requests of a run: the slowest, and the critical path of the one that is looked at."""

from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_safe

from controlplane.errors import ConflictError
from controlplane.evidence import paths
from controlplane.runs import selectors
from controlplane.runs.models import Run
from scheduler_core.evidence.path.report import PathReport
from scheduler_core.evidence.path.slowest import MEASURES
from scheduler_core.types.errors import InputError
from scheduler_core.verdict.titles import metric_title

STRETCHES_SHOWN = 20
MOST_DIGITS = 12  # of the number of a request


@login_required
@require_safe
def slowest(request: HttpRequest, run_id: str) -> HttpResponse:
    """The slowest requests by ``?by=``, and the path of ``?request=`` or else of the slowest."""
    rows = selectors.visible_to(request.user).select_related("arm_run__arm__experiment")
    run = get_object_or_404(rows, pk=run_id)
    by = request.GET.get("by", MEASURES[0])
    if by not in MEASURES:
        by = MEASURES[0]
    context: dict[str, Any] = {
        "run": run,
        "by": by,
        "measures": [(name, metric_title(name)) for name in MEASURES],
    }
    try:
        context["rows"] = paths.slowest_requests(run=run, by=by)
        context["chosen"] = request.GET.get("request", "").strip() or _first(context["rows"])
        context |= _path(run, context["chosen"])
    except (ConflictError, InputError) as error:
        context["refusal"] = str(error)
    return render(request, "runs/requests.html", context)


def _first(rows: list[dict[str, Any]]) -> str:
    return str(rows[0]["request"]) if rows else ""


def _path(run: Run, number: str) -> dict[str, Any]:
    """What the page shows of one path; a refusal beside the list where ``number`` is none or has no path."""
    if not number:
        return {}
    if not (number.isascii() and number.isdigit() and len(number) <= MOST_DIGITS):
        return {"no_path": f"request: {number[:40]!r} is not a number of a request, such as 0"}
    try:
        report = paths.path_of(run=run, request=int(number))
    except ConflictError as error:
        return {"no_path": str(error)}
    return {"path": report, "longest": _longest(report)}


def _longest(report: PathReport) -> list[dict[str, Any]]:
    """The longest stretches, in the order of the path."""
    start = report.stretches[0].start_ms if report.stretches else 0.0
    longest = sorted(report.stretches, key=lambda stretch: stretch.start_ms - stretch.end_ms)[:STRETCHES_SHOWN]
    return [
        {"kind": item.kind, "after_ms": item.start_ms - start, "ms": item.end_ms - item.start_ms, "hidden": item.hidden}
        for item in sorted(longest, key=lambda stretch: stretch.start_ms)
    ]
