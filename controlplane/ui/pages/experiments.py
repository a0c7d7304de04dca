"""Experiments: list, submission, and the page of one with its runs, charts and verdict."""

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from controlplane.access import may_change, require_person
from controlplane.experiments import selectors, services
from controlplane.experiments.drafts import read_draft
from controlplane.experiments.exports import EXPERIMENT_EXPORTS
from controlplane.experiments.looking import looks_in_words
from controlplane.experiments.models import Experiment, load_words
from controlplane.live.snapshots import experiment_message
from controlplane.policies import selectors as policies
from controlplane.runs.models import Run
from controlplane.specs import brief
from controlplane.ui.acting import REFUSALS, act
from controlplane.ui.charts import chart_data, groups_of
from controlplane.ui.drawing import arrival_curve, dot_plot
from controlplane.ui.editor import Editor, posted, refuse, without_empty
from controlplane.ui.formulas import formulas_switch
from controlplane.ui.listing import Filter, equals, listing
from controlplane.ui.setting import experiment_setting
from controlplane.ui.verdicts import comparisons, isolations, next_step, sweeps
from controlplane.workloads import selectors as workloads
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.yamltext import dump_yaml
from scheduler_core.types.errors import InputError

MOST_CANDIDATES = 15  # of 16 arms one is the baseline
STARTING: dict[str, Any] = {
    "name": "",
    "workload": {"profile": "azure-2023-conv", "requests": 60, "rate_rps": 2, "lengths_scale": 0.1},
    "target": {"torch": {"model": "demo-s"}},
    "arms": {
        "baseline": {"policy": "static", "batch": {"size": 8}},
        "candidate": {"policy": "vllm_v1", "batch": {"token_budget": 512}},
    },
}


def _decided(decision: str) -> Q:
    """Experiments in which some candidate got this decision."""
    found = Q()
    for place in range(MOST_CANDIDATES):
        for kind in ("comparisons", "sweeps", "isolations"):
            found |= Q(**{f"verdict__{kind}__{place}__decision": decision})
    return found


@login_required
@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """All experiments, newest first."""
    decisions = {decision: (decision, _decided(decision)) for decision in ("accept", "tune", "reject")}
    filters = [
        equals("status", "Status", "status", [(value, label.lower()) for value, label in Experiment.Status.choices]),
        Filter("decision", "Verdict", decisions),
        Filter("owner", "Owner", {"me": ("me", Q(owner_id=request.user.pk))}),
        Filter("archived", "Archived", {"yes": ("only archived", Q(archived_at__isnull=False))}),
    ]
    rows = selectors.visible_to(request.user).defer("spec")
    if request.GET.get("archived") != "yes":
        rows = rows.filter(archived_at=None)
    page = listing(request, rows, search=("name", "id"), filters=filters)
    return render(request, "experiments/list.html", {"page": page})


@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    """A new experiment, from a form or YAML.

    ``?from=`` clones an experiment, ``?next=C.N`` of it takes step N proposed for comparison C, ``?workload=`` and
    ``?policy=`` start from saved versions.
    """
    person = require_person(request.user)
    source = _source(request)
    if request.method != "POST":
        editor = Editor(ExperimentSpec, experiment_setting(person), _start(request, source))
        return _edit_page(request, editor, source)
    setting = experiment_setting(person)
    editor = posted(request, ExperimentSpec, setting, lambda data: read_draft(data, user=person))
    if editor.acts and editor.action == "save":
        try:
            made = services.submit_experiment(owner=person, data=editor.data, cloned_from=source)
        except REFUSALS as error:
            refuse(request, editor, error)
        else:
            messages.success(request, "Submitted. Its runs are queued in the order they will be taken.")
            return redirect("experiment", made.pk)
    return _edit_page(request, editor, source)


def _source(request: HttpRequest) -> Experiment | None:
    wanted = request.POST.get("from") or request.GET.get("from")
    return selectors.visible_to(request.user).filter(pk=wanted).first() if wanted else None


def _start(request: HttpRequest, source: Experiment | None) -> dict[str, Any]:
    """What the form starts from."""
    if source is not None:
        proposed = next_step(source, request.GET.get("next", ""))
        data = _brief(proposed) if proposed else _clone(source)
        return data if proposed else data | {"name": _copy_name(source.name)}
    data = dict(STARTING)
    if wanted := request.GET.get("workload"):
        version = workloads.versions_visible_to(request.user).filter(pk=wanted).first()
        if version is not None:
            data["workload"] = {"use": version.pk}
    if wanted := request.GET.get("policy"):
        policy = policies.versions_visible_to(request.user).filter(pk=wanted).first()
        if policy is not None:
            data["arms"] = {"baseline": STARTING["arms"]["baseline"], "candidate": {"use": policy.pk}}
    return data


def _clone(source: Experiment) -> dict[str, Any]:
    """The experiment as it would be submitted again, without what are defaults anyway."""
    linked, short = services.clone_spec(source), _brief(source.spec)
    if "use" in linked["workload"]:
        short["workload"] = linked["workload"]
    arms = {name: linked["arms"][name] if "use" in linked["arms"][name] else arm for name, arm in short["arms"].items()}
    return short | {"arms": arms}


def _copy_name(name: str) -> str:
    stem, _, last = name.rpartition(" ")
    return f"{stem} {int(last) + 1}"[:64] if stem and last.isdecimal() else f"{name[:62]} 2"


def _brief(stored: dict[str, Any]) -> dict[str, Any]:
    """A stored experiment as a person would have written it, its target named even where it is the default."""
    short = brief(ExperimentSpec, stored)
    return short | {"target": short.get("target") or {"torch": {}}}


def _edit_page(request: HttpRequest, editor: Editor, source: Experiment | None) -> HttpResponse:
    """The editor with, when asked for, a dry run: the plan and the order of runs."""
    checked = None
    if editor.acts and editor.action == "preview":
        try:
            checked = services.check_experiment(data=editor.data, user=require_person(request.user))
        except InputError as error:
            editor.fail(error)
    context = {
        "editor": editor,
        "source": source,
        "checked": checked,
        "curve": arrival_curve(checked["plan"]["preview"]) if checked else None,
    }
    status = 422 if request.method == "POST" and editor.problems and editor.action == "save" else 200
    return render(request, "experiments/edit.html", context, status=status)


@login_required
@require_safe
def detail(request: HttpRequest, experiment_id: str) -> HttpResponse:
    """One experiment."""
    experiment = get_object_or_404(selectors.visible_to(request.user).select_related("cloned_from"), pk=experiment_id)
    runs = list(selectors.runs_of(experiment).defer("job"))
    arms = list(experiment.arms.select_related("policy_version__policy"))
    allowed = may_change(request.user, experiment)
    context = {
        "experiment": experiment,
        "arms": [{"arm": arm, "yaml": dump_yaml(without_empty(arm.policy))} for arm in arms],
        "matrix": _matrix(experiment, arms, runs),
        "sweeps": sweeps(experiment.verdict),
        "isolations": isolations(experiment.verdict),
        "repeats": sorted({run.arm_run.repeat for run in runs}),
        "looks": looks_in_words(experiment, 1 + max((run.arm_run.repeat for run in runs), default=0)),
        "message": experiment_message(request.user, experiment_id),
        "open": experiment.status in (Experiment.Status.QUEUED, Experiment.Status.RUNNING),
        "may_change": allowed,
        "comparisons": comparisons(experiment.verdict),
        "plots": _plots(experiment, runs),
        "charts": chart_data(groups_of(experiment.spec["target"])),
        "yaml": dump_yaml(_brief(experiment.spec)),
        "failed": [run for run in runs if run.state in ("failed", "lost")],
        "overlay": _overlay(experiment, arms, runs),
        "formulas": formulas_switch(request, lambda: selectors.summaries_by_arm(experiment))
        if any(run.summary for run in runs)
        else None,
        "exports": list(EXPERIMENT_EXPORTS.values()) if experiment.verdict else [],
    }
    return render(request, "experiments/detail.html", context)


def _matrix(experiment: Experiment, arms: list[Any], runs: list[Run]) -> list[dict[str, Any]]:
    """Arms by repeats; in a load sweep, and for isolation, each arm has a row for each load."""
    by_place = {(run.arm_run.arm_id, run.arm_run.load, run.arm_run.repeat): run for run in runs}
    repeats = sorted({repeat for *_, repeat in by_place})
    loads = sorted({load for _, load, _ in by_place}, key=lambda load: load or 0.0)
    return [
        {
            "arm": arm,
            "at": load_words(experiment.spec, load),
            "runs": [by_place.get((arm.pk, load, repeat)) for repeat in repeats],
        }
        for arm in arms
        for load in loads
    ]


def _overlay(experiment: Experiment, arms: list[Any], runs: list[Run]) -> list[dict[str, Any]]:
    """What the overlay charts need: for each repeat the run of each arm, in the order of arms."""
    position = {arm.pk: index for index, arm in enumerate(arms)}
    loads = sorted({run.arm_run.load or 0.0 for run in runs})
    rows = [
        {
            "run": run.pk,
            "repeat": run.arm_run.repeat,
            "arm": run.arm_run.label(experiment.spec),
            "place": position[run.arm_run.arm_id] * len(loads) + loads.index(run.arm_run.load or 0.0),
        }
        for run in runs
    ]
    return sorted(rows, key=lambda row: (row["repeat"], row["place"]))


def _plots(experiment: Experiment, runs: list[Run]) -> list[Any]:
    """Values of the gated metrics, repeat by repeat."""
    goal = experiment.spec.get("goal") or {}
    names = [goal.get("primary", "ttft_p95_ms"), *(goal.get("guard") or {})]
    plots = []
    for name in dict.fromkeys(names):
        values: dict[str, list[float | None]] = {}
        for run in sorted(runs, key=lambda run: (run.arm_run.arm.position, run.arm_run.load or 0, run.arm_run.repeat)):
            figure = ((run.summary or {}).get("metrics") or {}).get(name) or {}
            values.setdefault(run.arm_run.label(experiment.spec), []).append(figure.get("value"))
        plot = dot_plot(name, values)
        if plot is not None:
            plots.append(plot)
    return plots


def _found(request: HttpRequest, experiment_id: str) -> Experiment:
    return get_object_or_404(selectors.visible_to(request.user), pk=experiment_id)


@login_required
@require_POST
def cancel(request: HttpRequest, experiment_id: str) -> HttpResponse:
    """Cancel every run that has not ended."""
    experiment = _found(request, experiment_id)
    person = require_person(request.user)
    return act(
        request,
        lambda: services.cancel_experiment(experiment=experiment, user=person),
        done="Waiting runs are cancelled; running ones stop within seconds.",
        then=reverse("experiment", args=[experiment.pk]),
    )


@login_required
@require_POST
def archive(request: HttpRequest, experiment_id: str) -> HttpResponse:
    """Hide an experiment from lists, or bring it back."""
    experiment = _found(request, experiment_id)
    person = require_person(request.user)
    archived = request.POST.get("archived") != "no"
    return act(
        request,
        lambda: services.set_archived(experiment=experiment, user=person, archived=archived),
        done="Archived: out of the lists, nothing is deleted." if archived else "Back in the lists.",
        then=reverse("experiment", args=[experiment.pk]),
    )


@login_required
@require_POST
def notes(request: HttpRequest, experiment_id: str) -> HttpResponse:
    """Replace the notes."""
    experiment = _found(request, experiment_id)
    person = require_person(request.user)
    text = request.POST.get("notes", "")
    return act(
        request,
        lambda: services.set_notes(experiment=experiment, user=person, notes=text),
        done="Notes saved.",
        then=reverse("experiment", args=[experiment.pk]),
    )


@login_required
@require_safe
def spec_file(request: HttpRequest, experiment_id: str) -> HttpResponse:
    """The experiment as a file for the command line."""
    experiment = _found(request, experiment_id)
    response = HttpResponse(dump_yaml(_brief(experiment.spec)), content_type="application/yaml; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{experiment.pk}.yaml"'
    return response
