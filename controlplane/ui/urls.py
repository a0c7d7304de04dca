"""URLs of the pages."""

from django.contrib.staticfiles.storage import staticfiles_storage
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import path

from controlplane.ui.pages import (
    endpoints,
    experiments,
    fleet,
    home,
    measured,
    policies,
    requests,
    runs,
    studies,
    traces,
    workloads,
)


def favicon(request: HttpRequest) -> HttpResponse:
    """For browsers that ask for the old name."""
    return redirect(staticfiles_storage.url("headway/favicon.svg"))


urlpatterns = [
    path("", home.home, name="home"),
    path("favicon.ico", favicon),
    path("first/", home.run_first, name="run-first"),
    path("experiments/", experiments.index, name="experiments"),
    path("experiments/new/", experiments.new, name="experiment-new"),
    path("experiments/<slug:experiment_id>/", experiments.detail, name="experiment"),
    path("experiments/<slug:experiment_id>/spec.yaml", experiments.spec_file, name="experiment-spec"),
    path("experiments/<slug:experiment_id>/cancel/", experiments.cancel, name="experiment-cancel"),
    path("experiments/<slug:experiment_id>/archive/", experiments.archive, name="experiment-archive"),
    path("experiments/<slug:experiment_id>/notes/", experiments.notes, name="experiment-notes"),
    path("studies/", studies.index, name="studies"),
    path("studies/new/<slug:kind>/", studies.new, name="study-new"),
    path("studies/<slug:study_id>/", studies.detail, name="study"),
    path("studies/<slug:study_id>/cancel/", studies.cancel, name="study-cancel"),
    path("studies/<slug:study_id>/resume/", studies.resume, name="study-resume"),
    path("measured/", measured.measured, name="measured"),
    path("runs/", runs.index, name="runs"),
    path("runs/<slug:run_id>/", runs.detail, name="run"),
    path("runs/<slug:run_id>/requests/", requests.slowest, name="run-requests"),
    path("runs/<slug:run_id>/cancel/", runs.cancel, name="run-cancel"),
    path("runs/<slug:run_id>/retry/", runs.retry, name="run-retry"),
    path("runs/<slug:run_id>/fork/", runs.fork, name="run-fork"),
    path("runs/<slug:run_id>/close/", runs.force_close, name="run-close"),
    path("runs/<slug:run_id>/artifacts/<int:pk>/", runs.artifact, name="run-artifact"),
    path("runs/<slug:run_id>/segments/<int:pk>/", runs.segment, name="run-segment"),
    path("workloads/", workloads.index, name="workloads"),
    path("workloads/new/", workloads.new, name="workload-new"),
    path("workloads/<slug:workload_id>/", workloads.latest, name="workload"),
    path("workloads/<slug:workload_id>/edit/", workloads.edit, name="workload-edit"),
    path("workloads/<slug:workload_id>/archive/", workloads.archive, name="workload-archive"),
    path("workloads/<slug:workload_id>/<int:number>/", workloads.version, name="workload-version"),
    path("traces/", traces.index, name="traces"),
    path("traces/new/", traces.new, name="trace-new"),
    path("traces/<slug:dataset_id>/", traces.detail, name="trace"),
    path("traces/<slug:dataset_id>/delete/", traces.delete, name="trace-delete"),
    path("policies/", policies.index, name="policies"),
    path("policies/new/", policies.new, name="policy-new"),
    path("policies/<slug:policy_id>/", policies.latest, name="policy"),
    path("policies/<slug:policy_id>/edit/", policies.edit, name="policy-edit"),
    path("policies/<slug:policy_id>/archive/", policies.archive, name="policy-archive"),
    path("policies/<slug:policy_id>/<int:number>/", policies.version, name="policy-version"),
    path("endpoints/", endpoints.index, name="endpoints"),
    path("endpoints/<slug:endpoint_id>/", endpoints.detail, name="endpoint"),
    path("endpoints/<slug:endpoint_id>/check/", endpoints.check, name="endpoint-check"),
    path("endpoints/<slug:endpoint_id>/try/", endpoints.try_out, name="endpoint-try"),
    path("endpoints/<slug:endpoint_id>/change/", endpoints.change, name="endpoint-change"),
    path("endpoints/<slug:endpoint_id>/remove/", endpoints.remove, name="endpoint-remove"),
    path("fleet/", fleet.index, name="fleet"),
    path("fleet/calibrate/", fleet.calibrate, name="calibrate"),
    path("fleet/probe/", fleet.probe, name="probe"),
    path("fleet/drain/", fleet.drain, name="worker-drain"),
    path("fleet/profiles/<slug:profile_id>/", fleet.profile, name="profile"),
]
