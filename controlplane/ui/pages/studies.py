"""Studies: list, the forms of guided plans, searches and predictions, and the page of one."""

from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.safestring import mark_safe
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from controlplane.access import may_change, require_person
from controlplane.specs import brief
from controlplane.studies import selectors, services
from controlplane.studies.models import Study
from controlplane.ui.acting import REFUSALS, act
from controlplane.ui.editor import Editor, posted, refuse
from controlplane.ui.listing import Filter, equals, listing
from controlplane.ui.setting import experiment_setting
from controlplane.ui.verdicts import comparisons
from scheduler_core.spec.base import Spec
from scheduler_core.spec.studies import GuidedSpec, PredictionSpec, SearchSpec
from scheduler_core.spec.yamltext import dump_yaml
from scheduler_core.verdict.guided import STAGES, guided_parts
from scheduler_core.verdict.prediction import STAGES as PREDICTION_STAGES
from scheduler_core.verdict.report.study import search_charts, search_rows

_WORKLOAD: dict[str, Any] = {"profile": "azure-2023-conv", "requests": 60, "rate_rps": 2, "lengths_scale": 0.1}


@dataclass(frozen=True)
class _Kind:
    """How one kind of study is made in a form."""

    spec: type[Spec]
    title: str
    lead: str
    starting: dict[str, Any]
    read: Any
    start: Any


_KINDS: dict[str, _Kind] = {
    Study.Kind.GUIDED: _Kind(
        GuidedSpec, "New guided plan",
        "One layer after another: each stage is an experiment that starts from what the one before accepted, and the "
        "last compares the outcome with the reference.",
        {"name": "", "workload": _WORKLOAD, "target": {"torch": {"model": "demo-s"}}},
        services.read_guided, services.start_guided,
    ),
    Study.Kind.SEARCH: _Kind(
        SearchSpec, "New search",
        "Plays many policies on the modelled target, shows what no other beats in cost, throughput and tail, and has "
        "the best confirmed on a real target.",
        {"name": "", "workload": _WORKLOAD, "base": {"policy": "vllm_v1"}, "trials": 40,
         "space": {"batch.token_budget": {"low": 128, "high": 4096}, "batch.size": {"values": ["8", "16", "32"]}},
         "confirm": {"target": {"torch": {"model": "demo-s"}}}},
        services.read_search, services.start_search,
    ),
    Study.Kind.PREDICTION: _Kind(
        PredictionSpec, "New prediction",
        "Plays a load sweep on the model of a calibrated server and writes down how much each arm will carry; then "
        "measures the same sweep on the server and says what came of it.",
        {"experiment": {
            "name": "", "workload": {**_WORKLOAD, "tiers": {"default": {"ttft_ms": 1000}}},
            "target": {"server": {"launch": ""}}, "sweep": {"loads": [1, 2, 4, 8]},
            "arms": {
                "budget-2048": {"policy": "vllm_v1", "batch": {"token_budget": 2048}},
                "budget-256": {"policy": "vllm_v1", "batch": {"token_budget": 256}},
            },
        }},
        services.read_prediction, services.start_prediction,
    ),
}  # fmt: skip


@login_required
@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """All studies, newest first."""
    filters = [
        equals("kind", "Kind", "kind", [(value, label.lower()) for value, label in Study.Kind.choices]),
        equals("status", "Status", "status", [(value, label.lower()) for value, label in Study.Status.choices]),
        Filter("owner", "Owner", {"me": ("me", Q(owner_id=request.user.pk))}),
    ]
    page = listing(request, selectors.visible_to(request.user), search=("name", "id"), filters=filters)
    return render(request, "studies/list.html", {"page": page})


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest, kind: str) -> HttpResponse:
    """A new study, from a form or YAML; ``?from=`` starts from another one's."""
    person = require_person(request.user)
    made = _KINDS.get(kind)
    if made is None:
        raise Http404
    setting = experiment_setting(person)
    if request.method != "POST":
        source = selectors.visible_to(request.user).filter(pk=request.GET.get("from", ""), kind=kind).first()
        start = brief(made.spec, source.spec) if source is not None else made.starting
        return _edit(request, Editor(made.spec, setting, start), made)
    editor = posted(request, made.spec, setting, lambda data: made.read(data, user=person))
    if editor.acts:
        try:
            study = made.start(owner=person, data=editor.data)
        except REFUSALS as error:
            refuse(request, editor, error)
        else:
            messages.success(request, "Submitted. What follows is queued by itself.")
            return redirect("study", study.pk)
    return _edit(request, editor, made)


def _edit(request: HttpRequest, editor: Editor, kind: _Kind) -> HttpResponse:
    status = 422 if request.method == "POST" and editor.problems and editor.action == "save" else 200
    return render(request, "studies/edit.html", {"editor": editor, "kind": kind}, status=status)


def _found(request: HttpRequest, study_id: str) -> Study:
    return get_object_or_404(selectors.visible_to(request.user), pk=study_id)


@login_required
@require_safe
def detail(request: HttpRequest, study_id: str) -> HttpResponse:
    """One study."""
    study = _found(request, study_id)
    result = selectors.search_result(study)
    stages = [
        {
            "title": services.stage_title(study, stage),
            "number": stage.number + 1,
            "experiment": stage.experiment,
            "headlines": [item["headline"] for item in comparisons(stage.experiment.verdict)],
        }
        for stage in selectors.stages_of(study)
    ]
    context = {
        "study": study,
        "stages": stages,
        "planned": _planned(study),
        "predicted": selectors.prediction_result(study),
        "report": guided_parts(selectors.results_of(study)) if study.kind == Study.Kind.GUIDED else [],
        "result": result,
        "charts": mark_safe(search_charts(result)) if result else "",
        "rows": search_rows(result)[:100] if result else [],
        "yaml": dump_yaml(brief(_KINDS[study.kind].spec, study.spec)),
        "may_change": may_change(request.user, study),
        "open": study.status == Study.Status.RUNNING,
    }
    return render(request, "studies/detail.html", context)


def _planned(study: Study) -> list[str]:
    """The stages that a study will have, as far as it goes on."""
    if study.kind == Study.Kind.GUIDED:
        return [stage.name for stage in STAGES]
    return list(PREDICTION_STAGES) if study.kind == Study.Kind.PREDICTION else []


@login_required
@require_POST
def cancel(request: HttpRequest, study_id: str) -> HttpResponse:
    """Stop a study."""
    study = _found(request, study_id)
    person = require_person(request.user)
    return act(
        request,
        lambda: services.cancel_study(study=study, user=person),
        done="Cancelled: what is open stops, and nothing further is made.",
        then=reverse("study", args=[study.pk]),
    )


@login_required
@require_POST
def resume(request: HttpRequest, study_id: str) -> HttpResponse:
    """Go on with a study that failed or was cancelled."""
    study = _found(request, study_id)
    person = require_person(request.user)
    return act(
        request,
        lambda: services.resume_study(study=study, user=person),
        done="It goes on.",
        then=reverse("study", args=[study.pk]),
    )
