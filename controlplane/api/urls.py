"""URL map of the REST API: one line per view, the verbs are the view's methods."""

from django.urls import path

from controlplane.api.v1 import (
    comparisons,
    datasets,
    endpoints,
    experiments,
    fleet,
    meta,
    policies,
    runs,
    studies,
    workloads,
)

app_name = "api"

urlpatterns = [
    path("health", meta.Health.as_view(), name="health"),
    path("me", meta.Me.as_view(), name="me"),
    path("metrics", meta.Metrics.as_view(), name="metrics"),
    path("schemas", meta.SpecSchemas.as_view(), name="schemas"),
    path("schemas/<str:name>", meta.SpecSchema.as_view(), name="schema"),
    path("openapi", meta.OpenApiDocument.as_view(), name="openapi"),
    path("datasets", datasets.Datasets.as_view(), name="datasets"),
    path("datasets/inspect", datasets.DatasetInspection.as_view(), name="dataset-inspect"),
    path("datasets/<str:pk>", datasets.DatasetDetail.as_view(), name="dataset"),
    path("datasets/<str:pk>/file", datasets.DatasetFile.as_view(), name="dataset-file"),
    path("workloads", workloads.Workloads.as_view(), name="workloads"),
    path("workloads/preview", workloads.WorkloadPreview.as_view(), name="workload-preview"),
    path("workloads/<str:pk>", workloads.WorkloadDetail.as_view(), name="workload"),
    path("workloads/<str:pk>/versions", workloads.WorkloadVersions.as_view(), name="workload-versions"),
    path(
        "workloads/<str:pk>/versions/<int:number>", workloads.WorkloadVersionDetail.as_view(), name="workload-version"
    ),
    path(
        "workloads/<str:pk>/versions/<int:number>/plan", workloads.WorkloadVersionPlan.as_view(), name="workload-plan"
    ),
    path("policies", policies.Policies.as_view(), name="policies"),
    path("policies/presets", policies.PolicyPresets.as_view(), name="policy-presets"),
    path("policies/<str:pk>", policies.PolicyDetail.as_view(), name="policy"),
    path("policies/<str:pk>/versions", policies.PolicyVersions.as_view(), name="policy-versions"),
    path("policies/<str:pk>/versions/<int:number>", policies.PolicyVersionDetail.as_view(), name="policy-version"),
    path("experiments", experiments.Experiments.as_view(), name="experiments"),
    path("experiments/check", experiments.ExperimentCheck.as_view(), name="experiment-check"),
    path("experiments/<str:pk>", experiments.ExperimentDetail.as_view(), name="experiment"),
    path("experiments/<str:pk>/cancel", experiments.ExperimentCancel.as_view(), name="experiment-cancel"),
    path("experiments/<str:pk>/clone", experiments.ExperimentClone.as_view(), name="experiment-clone"),
    path("experiments/<str:pk>/exports/<str:name>", experiments.ExperimentExport.as_view(), name="experiment-export"),
    path("studies", studies.Studies.as_view(), name="studies"),
    path("studies/guided", studies.GuidedPlans.as_view(), name="studies-guided"),
    path("studies/search", studies.Searches.as_view(), name="studies-search"),
    path("studies/<str:pk>", studies.StudyDetail.as_view(), name="study"),
    path("studies/<str:pk>/cancel", studies.StudyCancel.as_view(), name="study-cancel"),
    path("studies/<str:pk>/resume", studies.StudyResume.as_view(), name="study-resume"),
    path("studies/<str:pk>/report", studies.StudyReport.as_view(), name="study-report"),
    path("comparisons", comparisons.Comparisons.as_view(), name="comparisons"),
    path("runs", runs.Runs.as_view(), name="runs"),
    path("runs/<str:pk>", runs.RunDetail.as_view(), name="run"),
    path("runs/<str:pk>/cancel", runs.RunCancel.as_view(), name="run-cancel"),
    path("runs/<str:pk>/retry", runs.RunRetry.as_view(), name="run-retry"),
    path("runs/<str:pk>/close", runs.RunClose.as_view(), name="run-close"),
    path("runs/<str:pk>/samples", runs.RunSamples.as_view(), name="run-samples"),
    path("runs/<str:pk>/segments", runs.RunSegments.as_view(), name="run-segments"),
    path("runs/<str:pk>/attempts/<int:attempt>/segments/<int:number>", runs.RunSegment.as_view(), name="run-segment"),
    path("runs/<str:pk>/attempts/<int:attempt>/files/<str:name>", runs.RunArtifact.as_view(), name="run-artifact"),
    path("runs/<str:pk>/exports/<str:name>", runs.RunExport.as_view(), name="run-export"),
    path("profiles", fleet.Profiles.as_view(), name="profiles"),
    path("profiles/calibrate", fleet.Calibrate.as_view(), name="profile-calibrate"),
    path("profiles/<str:pk>", fleet.ProfileDetail.as_view(), name="profile"),
    path("endpoints", endpoints.Endpoints.as_view(), name="endpoints"),
    path("endpoints/<str:pk>/check", endpoints.EndpointCheck.as_view(), name="endpoint-check"),
    path("endpoints/<str:pk>/try", endpoints.EndpointTry.as_view(), name="endpoint-try"),
    path("endpoints/<str:pk>", endpoints.EndpointDetail.as_view(), name="endpoint"),
    path("workers", fleet.Workers.as_view(), name="workers"),
    path("workers/<str:name>/drain", fleet.WorkerDrain.as_view(), name="worker-drain"),
]
