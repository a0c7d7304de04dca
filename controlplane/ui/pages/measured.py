"""Results measured elsewhere: upload files of two arms, read the verdict on the same page; nothing is kept."""

from typing import Any, get_args

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from controlplane.access import require_person
from controlplane.experiments.measured import MAX_BYTES, judge_uploads
from controlplane.ui.verdicts import comparisons
from scheduler_core.evidence.imported.readers import READERS
from scheduler_core.spec.goal import GoalSpec, MetricName
from scheduler_core.types.errors import InputError, Problem
from scheduler_core.verdict.elsewhere import Judged
from scheduler_core.verdict.titles import metric_title

SIDES = ("baseline", "candidate")


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def measured(request: HttpRequest) -> HttpResponse:
    """The form and, after uploading, the verdict."""
    problems: list[Problem] = []
    judged: Judged | None = None
    if request.method == "POST":
        try:
            judged = _judge(request)
        except InputError as error:
            problems = error.problems
    goal = GoalSpec()
    context: dict[str, Any] = {
        "problems": problems,
        "sides": [(side, request.POST.get(f"{side}_name", side)) for side in SIDES],
        "tools": list(READERS),
        "tool": request.POST.get("tool", ""),
        "metrics": [(name, metric_title(name)) for name in get_args(MetricName)],
        "primary": request.POST.get("primary", goal.primary),
        "better_by": request.POST.get("better_by", f"{goal.better_by * 100:g}%"),
        "most_mib": MAX_BYTES // 2**20,
        "comparisons": comparisons(judged.verdict.canonical()) if judged else [],
        "notes": judged.notes if judged else (),
    }
    return render(request, "measured.html", context, status=422 if problems else 200)


def _judge(request: HttpRequest) -> Judged:
    """The uploads of both sides, each side's files in the order of their names."""
    files = []
    names = [request.POST.get(f"{side}_name", "").strip() or side for side in SIDES]
    if names[0] == names[1]:
        raise InputError([Problem("names", f"both sides are called {names[0]!r}; give them two names")])
    for side, name in zip(SIDES, names, strict=True):
        chosen = sorted(request.FILES.getlist(side), key=lambda file: str(file.name))
        if not chosen:
            raise InputError([Problem(side, "choose at least one result file")])
        files += [(name, file) for file in chosen]
    asked = {
        "baseline": names[0],
        "tool": request.POST.get("tool") or None,
        "goal": {
            name: request.POST[name].strip() for name in ("primary", "better_by") if request.POST.get(name, "").strip()
        },
    }
    return judge_uploads(user=require_person(request.user), files=files, asked=asked)
