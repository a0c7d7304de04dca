"""Runs: the list, and the page of one run with its live charts, inputs, events and evidence."""

from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db.models import Q, QuerySet
from django.http import FileResponse, Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from controlplane.access import may_change, require_person
from controlplane.evidence import exports
from controlplane.evidence.models import Artifact, Segment
from controlplane.experiments import forking
from controlplane.runs import selectors, services
from controlplane.runs.lifecycle import LEASED_STATES, TERMINAL_STATES, WAITING_STATES, State
from controlplane.runs.models import Run
from controlplane.ui.acting import REFUSALS, act
from controlplane.ui.charts import chart_data, groups_of
from controlplane.ui.editor import without_empty
from controlplane.ui.formulas import formulas_switch
from controlplane.ui.listing import Filter, equals, listing
from scheduler_core.evidence.account import account
from scheduler_core.evidence.metrics.cost import COST_FIGURES, PAID
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.spec.fork import ForkSpec
from scheduler_core.spec.parse import parse
from scheduler_core.spec.yamltext import dump_yaml, load_mapping
from scheduler_core.verdict.titles import metric_title

HEADLINES = (
    "ttft_p95_ms",
    "tpot_p95_ms",
    "longest_gap_p95_ms",
    "queue_wait_p95_ms",
    "e2e_p95_ms",
    "throughput_tokens_per_s",
    "goodput_rps",
    "completion_share",
)

# Of instances that are spread over devices; those that a run has are shown beside its pools.
DEVICE_FIGURES = (
    "collective_ms",
    "exposed_collective_ms",
    "hidden_collective_ms",
    "bubble_ms",
    "rank_wait_ms",
    "expert_wait_ms",
    "expert_load_imbalance",
    "expert_dropped_share",
    "step_p99_ms",
)

_GROUPS = {
    "open": ("not ended", Q(state__in=[*WAITING_STATES, *LEASED_STATES])),
    "bad": ("failed or lost", Q(state__in=[State.FAILED, State.LOST])),
}


def _with_experiment(runs: QuerySet[Run]) -> QuerySet[Run]:
    return runs.select_related("arm_run__arm__experiment").defer(
        "job", "arm_run__arm__policy", "arm_run__arm__experiment__spec", "arm_run__arm__experiment__verdict"
    )


@login_required
@require_safe
def index(request: HttpRequest) -> HttpResponse:
    """All runs, newest first."""
    states = Filter(
        "state", "State", _GROUPS | {value: (label.lower(), Q(state=value)) for value, label in State.choices}
    )
    filters = [
        states,
        equals("kind", "Kind", "kind", Run.Kind.choices),
        equals("device", "Device", "device_kind", [("cpu", "cpu"), ("cuda", "cuda")]),
        Filter("owner", "Owner", {"me": ("me", Q(owner_id=request.user.pk))}),
    ]
    rows = _with_experiment(selectors.visible_to(request.user))
    page = listing(request, rows, search=("title", "id"), filters=filters)
    return render(request, "runs/list.html", {"page": page})


@login_required
@require_safe
def detail(request: HttpRequest, run_id: str) -> HttpResponse:
    """One run."""
    rows = selectors.visible_to(request.user).select_related("arm_run__arm__experiment", "cancel_requested_by")
    run = get_object_or_404(rows, pk=run_id)
    attempts = list(run.attempts.all())
    artifacts, segments = list(run.artifacts.all()), list(run.segments.all())
    allowed = may_change(request.user, run)
    context = {
        "run": run,
        "arm_run": getattr(run, "arm_run", None),
        "ended": run.state in TERMINAL_STATES,
        "actions": {name: allowed and on for name, on in selectors.actions(run).items()},
        "may_change": allowed,
        "position": selectors.queue_position(run),
        "attempts": attempts,
        "transitions": list(run.transitions.all()),
        "artifacts": artifacts,
        "exports": exports.offered(run),
        "segments": segments,
        "segment_bytes": sum(item.bytes for item in segments),
        "inputs": dump_yaml(without_empty(run.job)),
        "charts": chart_data(groups_of(run.job.get("target") or {})),
        "headlines": HEADLINES,
        "fork": _fork_form(run),
        "formulas": formulas_switch(request, lambda: _arms(run)) if run.kind == Run.Kind.ARM and run.summary else None,
        **_summary(run),
    }
    return render(request, "runs/detail.html", context)


def _summary(run: Run) -> dict[str, Any]:
    """Parts of the stored summary that the page shows."""
    summary = run.summary or {}
    metrics = summary.get("metrics") or {}
    return {
        "summary": summary,
        "metrics": metrics,
        "metric_rows": [{"name": name, "title": metric_title(name), **figure} for name, figure in metrics.items()],
        "account": account(summary.get("offered", 0), summary.get("outcomes") or {}, summary.get("unsent") or {}),
        "reasons": (summary.get("reasons") or {}).items(),
        "tiers": summary.get("tiers") or {},
        "pools": summary.get("pools") or {},
        "devices": _device_figures(metrics),
        "costs": [name for name in COST_FIGURES if (metrics.get(PAID) or {}).get("value") is not None],
        "audit": summary.get("audit"),
        "fingerprint": summary.get("fingerprint") or {},
    }


def _arms(run: Run) -> dict[str, list[RunSummary]]:
    summary = exports.summary_of(run)
    return {summary.arm: [summary]}


def _device_figures(metrics: dict[str, Any]) -> list[str]:
    """Names of the figures of devices; none where each instance is one device."""
    if (metrics.get("collective_ms") or {}).get("value") is None:
        return []
    return [name for name in DEVICE_FIGURES if (metrics.get(name) or {}).get("value") is not None]


def _fork_form(run: Run) -> dict[str, Any] | None:
    """What the form that forks the run starts from; None when the run cannot be forked."""
    if forking.why_not(run):
        return None
    moment = (run.summary or {}).get("duration_s") or 60
    return {"at_s": f"{moment / 2:.3g}", "policy": dump_yaml(without_empty(forking.policy_of(run)))}


@login_required
@require_POST
def fork(request: HttpRequest, run_id: str) -> HttpResponse:
    """Queue an experiment that compares the run from a moment on with itself under changed rules."""
    rows = selectors.visible_to(request.user).select_related("arm_run__arm__experiment")
    run, person = get_object_or_404(rows, pk=run_id), require_person(request.user)
    try:
        at_s = parse(ForkSpec, {"at_s": request.POST.get("at_s", "").strip()}).at_s
        policy = load_mapping(request.POST.get("policy", ""))
        experiment = forking.fork_run(owner=person, run=run, at_s=at_s, policy=policy)
    except REFUSALS as error:
        messages.error(request, str(error))
        return redirect("run", run.pk)
    messages.success(request, "Forked: both runs share their beginning, and the verdict compares from there.")
    return redirect("experiment", experiment.pk)


def _found(request: HttpRequest, run_id: str) -> Run:
    return get_object_or_404(selectors.visible_to(request.user), pk=run_id)


@login_required
@require_POST
def cancel(request: HttpRequest, run_id: str) -> HttpResponse:
    """Ask for the end of a run."""
    run, person = _found(request, run_id), require_person(request.user)
    done = "A waiting run is cancelled at once; a running one stops within a few seconds and keeps what it measured."
    return act(request, lambda: services.request_cancel(run=run, user=person), done=done, then=f"/runs/{run.pk}/")


@login_required
@require_POST
def retry(request: HttpRequest, run_id: str) -> HttpResponse:
    """Queue an ended run again."""
    run, person = _found(request, run_id), require_person(request.user)
    done = "Queued again as a new attempt; the evidence of earlier attempts is kept."
    return act(request, lambda: services.retry_run(run=run, user=person), done=done, then=f"/runs/{run.pk}/")


@login_required
@require_POST
def force_close(request: HttpRequest, run_id: str) -> HttpResponse:
    """End a run whose worker is gone."""
    run, person = _found(request, run_id), require_person(request.user)
    done = "Closed by force; whatever its worker still sends is refused."
    return act(request, lambda: services.force_close(run=run, user=person), done=done, then=f"/runs/{run.pk}/")


@login_required
@require_safe
def artifact(request: HttpRequest, run_id: str, pk: int) -> HttpResponseBase:
    """Download a finished file."""
    run = _found(request, run_id)
    found = get_object_or_404(Artifact, pk=pk, run=run)
    return _download(found.file, f"{run.pk}-{found.attempt}-{found.name}")


@login_required
@require_safe
def segment(request: HttpRequest, run_id: str, pk: int) -> HttpResponseBase:
    """Download a part of the record stream."""
    run = _found(request, run_id)
    found = get_object_or_404(Segment, pk=pk, run=run)
    return _download(found.file, f"{run.pk}-{found.attempt}-segment-{found.number:06d}.jsonl")


def _download(stored: Any, name: str) -> HttpResponseBase:
    """A stored file as an attachment that no browser runs or guesses the type of."""
    try:
        stream = stored.open("rb")
    except FileNotFoundError:
        raise Http404("the file is no longer in the storage") from None
    response = FileResponse(stream, as_attachment=True, filename=name, content_type="application/octet-stream")
    response["X-Content-Type-Options"] = "nosniff"
    response["Content-Security-Policy"] = "sandbox; default-src 'none'"
    return response
