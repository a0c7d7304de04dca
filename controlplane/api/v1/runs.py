"""Runs: state, live samples, evidence; cancel and retry."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from django.db.models import QuerySet
from django.http import Http404
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane import access
from controlplane.api.base import ApiView, ListView
from controlplane.api.downloads import attachment
from controlplane.api.fields import (
    ChoiceField,
    Input,
    Link,
    ListFilter,
    MultipleChoiceField,
    Nothing,
    ObjectField,
    SummaryField,
)
from controlplane.api.pagination import number_of
from controlplane.evidence import exports
from controlplane.evidence import selectors as evidence
from controlplane.evidence.models import Artifact, Segment
from controlplane.runs import selectors, services
from controlplane.runs.lifecycle import LEASED_STATES, TERMINAL_STATES, State
from controlplane.runs.models import Attempt, Run, Transition

TAGS = ["runs"]
MAX_SAMPLES = 5000
MAX_NUMBER = 2**31 - 1


class RunOut(serializers.ModelSerializer[Run]):
    """A run as lists show it."""

    url = Link("run", pk="pk")
    owner = serializers.CharField(source="owner.username")
    experiment = serializers.SerializerMethodField()
    arm = serializers.SerializerMethodField()
    repeat = serializers.SerializerMethodField()
    load = serializers.SerializerMethodField(help_text="Of a load sweep: requests/s, or users of a closed loop.")

    class Meta:
        model = Run
        fields = (
            "id", "url", "title", "kind", "owner", "experiment", "arm", "repeat", "load", "device_kind", "state",
            "reason", "attempt", "done", "total", "eta_s", "created_at", "started_at", "finished_at",
            "cancel_requested_at",
        )  # fmt: skip

    def get_experiment(self, run: Run) -> str | None:
        place = getattr(run, "arm_run", None)
        return place.arm.experiment_id if place else None

    def get_arm(self, run: Run) -> str | None:
        place = getattr(run, "arm_run", None)
        return place.arm.name if place else None

    def get_repeat(self, run: Run) -> int | None:
        place = getattr(run, "arm_run", None)
        return place.repeat if place else None

    def get_load(self, run: Run) -> float | None:
        place = getattr(run, "arm_run", None)
        return place.load if place else None


class AttemptOut(serializers.ModelSerializer[Attempt]):
    """One execution under a lease."""

    class Meta:
        model = Attempt
        fields = ("number", "worker", "started_at", "ended_at", "outcome", "reason")


class TransitionOut(serializers.ModelSerializer[Transition]):
    """One change of state."""

    class Meta:
        model = Transition
        fields = ("attempt", "at", "before", "after", "actor", "reason")


class ArtifactOut(serializers.ModelSerializer[Artifact]):
    """A finished file of an attempt."""

    url = Link("run-artifact", pk="run_id", attempt="attempt", name="name")

    class Meta:
        model = Artifact
        fields = ("name", "url", "attempt", "bytes", "sha256", "created_at")


class SegmentOut(serializers.ModelSerializer[Segment]):
    """A closed part of an attempt's record stream (JSON lines)."""

    url = Link("run-segment", pk="run_id", attempt="attempt", number="number")

    class Meta:
        model = Segment
        fields = ("number", "url", "attempt", "records", "bytes", "sha256", "created_at")


class RunDetailOut(RunOut):
    """A run with everything but its records."""

    queue_position = serializers.SerializerMethodField()
    actions = serializers.SerializerMethodField()
    job = ObjectField()
    plan_digest = serializers.CharField(source="plan_id", allow_null=True)
    summary = SummaryField(allow_null=True)
    attempts = AttemptOut(many=True)
    transitions = TransitionOut(many=True)
    artifacts = ArtifactOut(many=True)

    class Meta(RunOut.Meta):
        fields = (
            *RunOut.Meta.fields, "queue_position", "actions", "job", "plan_digest", "summary", "attempts",
            "transitions", "artifacts",
        )  # type: ignore[assignment]  # fmt: skip

    def get_queue_position(self, run: Run) -> int | None:
        return selectors.queue_position(run)

    def get_actions(self, run: Run) -> dict[str, bool]:
        return selectors.actions(run)


class CancelPreview(serializers.Serializer[Any]):
    """What cancelling would do now."""

    possible = serializers.BooleanField()
    effect = serializers.CharField()


class Reason(Input):
    """Why, for the log."""

    reason = serializers.CharField(required=False, allow_blank=True, max_length=500, default="")


class SamplesOut(serializers.Serializer[Any]):
    """Live samples in order of ``seq``; ask again with ``after`` set to ``last_seq``."""

    run = serializers.CharField()
    attempt = serializers.IntegerField()
    last_seq = serializers.IntegerField(help_text="Number of the last sample given here, or `after` if none.")
    newest_seq = serializers.IntegerField(help_text="Number of the newest sample stored.")
    samples = serializers.ListField(child=ObjectField())


class RunFilter(ListFilter):
    """Filters of the run list."""

    state = MultipleChoiceField(choices=State.choices, required=False)
    kind = ChoiceField(Run.Kind.choices, required=False)
    device_kind = serializers.CharField(required=False, max_length=12)
    experiment = serializers.CharField(required=False, max_length=24)
    owner = serializers.CharField(required=False, max_length=150)


def runs_for(request: Request) -> QuerySet[Run]:
    """Runs that the person may see, ready for output."""
    return selectors.visible_to(request.user).select_related("owner", "plan", "arm_run__arm")


def run_for(request: Request, pk: str) -> Run:
    """One of them, or 404."""
    return get_object_or_404(runs_for(request), pk=pk)


class Runs(ListView):
    """All runs."""

    filter_class = RunFilter

    @extend_schema(operation_id="runs_list", tags=TAGS, parameters=[RunFilter], responses=RunOut(many=True))
    def get(self, request: Request) -> Response:
        """Runs, newest first."""
        wanted = self.wanted
        rows = runs_for(request)
        if wanted.get("state"):
            rows = rows.filter(state__in=wanted["state"])
        if "experiment" in wanted:
            rows = rows.filter(arm_run__arm__experiment_id=wanted["experiment"])
        if "owner" in wanted:
            rows = rows.filter(owner__username=wanted["owner"])
        rows = rows.filter(**{name: wanted[name] for name in ("kind", "device_kind") if name in wanted})
        return self.page(rows, RunOut)


class RunDetail(ApiView):
    """One run."""

    @extend_schema(operation_id="runs_show", tags=TAGS, responses=RunDetailOut)
    def get(self, request: Request, pk: str) -> Response:
        """One run: state, attempts, transitions, summary and files."""
        return Response(RunDetailOut(run_for(request, pk), context={"request": request}).data)


class RunCancel(ApiView):
    """Cancelling a run."""

    @extend_schema(operation_id="runs_cancel_preview", tags=TAGS, responses=CancelPreview)
    def get(self, request: Request, pk: str) -> Response:
        """What cancelling would do now; nothing is changed."""
        run = run_for(request, pk)
        possible = selectors.actions(run)["cancel"] and access.may_change(request.user, run)
        return Response({"possible": possible, "effect": _cancel_effect(run)})

    @extend_schema(operation_id="runs_cancel", tags=TAGS, request=Reason, responses={202: RunOut})
    def post(self, request: Request, pk: str) -> Response:
        """Ask for a run to be cancelled; 409 when it has ended already."""
        run = run_for(request, pk)
        reason = self.read(Reason)["reason"]
        services.request_cancel(run=run, user=self.person, reason=reason)
        return Response(RunOut(run_for(request, pk), context={"request": request}).data, status=202)


class RunRetry(ApiView):
    """Retrying a run."""

    @extend_schema(operation_id="runs_retry", tags=TAGS, request=Nothing, responses={202: RunOut})
    def post(self, request: Request, pk: str) -> Response:
        """Queue an ended run again as its next attempt; the evidence of earlier attempts stays."""
        run = run_for(request, pk)
        self.read(Nothing)
        services.retry_run(run=run, user=self.person)
        return Response(RunOut(run_for(request, pk), context={"request": request}).data, status=202)


class RunClose(ApiView):
    """Ending a run without its worker."""

    @extend_schema(operation_id="runs_close", tags=TAGS, request=Reason, responses=RunOut)
    def post(self, request: Request, pk: str) -> Response:
        """End a run whose worker is gone or does not answer; whatever it still writes is refused."""
        run = run_for(request, pk)
        services.force_close(run=run, user=self.person, reason=self.read(Reason)["reason"])
        return Response(RunOut(run_for(request, pk), context={"request": request}).data)


class RunSamples(ApiView):
    """The live sample log of a run."""

    @extend_schema(
        operation_id="runs_samples",
        tags=TAGS,
        parameters=[
            OpenApiParameter("attempt", int, description="Absent: the current attempt."),
            OpenApiParameter("after", int, description="Give samples numbered above this.", default=0),
            OpenApiParameter("limit", int, description=f"At most {MAX_SAMPLES}.", default=1000),
        ],
        responses=SamplesOut,
    )
    def get(self, request: Request, pk: str) -> Response:
        """Samples numbered above ``after``: without gaps, each exactly once."""
        run = run_for(request, pk)
        attempt = number_of(request, "attempt", default=run.attempt, low=1, high=MAX_NUMBER)
        after = number_of(request, "after", default=0, low=0, high=MAX_NUMBER)
        limit = number_of(request, "limit", default=1000, low=1, high=MAX_SAMPLES)
        samples = evidence.samples_after(run=run, attempt=attempt, seq=after, limit=limit)
        last = samples[-1]["seq"] if samples else after
        newest = evidence.last_seq(run_id=run.pk, attempt=attempt)
        return Response({"run": run.pk, "attempt": attempt, "last_seq": last, "newest_seq": newest, "samples": samples})


class RunSegments(ApiView):
    """The record stream of a run, in closed segments."""

    @extend_schema(operation_id="runs_segments", tags=TAGS, responses=SegmentOut(many=True))
    def get(self, request: Request, pk: str) -> Response:
        """All stored segments, by attempt and number."""
        rows = run_for(request, pk).segments.all()
        return Response(SegmentOut(rows, many=True, context={"request": request}).data)


class RunSegment(ApiView):
    """One segment."""

    @extend_schema(
        operation_id="runs_segment_download", tags=TAGS, responses={(200, "application/octet-stream"): bytes}
    )
    def get(self, request: Request, pk: str, attempt: int, number: int) -> HttpResponseBase:
        """Download a segment's records."""
        row = get_object_or_404(run_for(request, pk).segments, attempt=attempt, number=number)
        name = f"{pk}-{attempt}-{number:05d}{_suffix(row.file.name)}"
        return attachment(row.file.open("rb"), name=name, size=row.bytes)


class RunArtifact(ApiView):
    """One finished file."""

    @extend_schema(
        operation_id="runs_artifact_download", tags=TAGS, responses={(200, "application/octet-stream"): bytes}
    )
    def get(self, request: Request, pk: str, attempt: int, name: str) -> HttpResponseBase:
        """Download a finished file of an attempt."""
        row = get_object_or_404(run_for(request, pk).artifacts, attempt=attempt, name=name)
        return attachment(row.file.open("rb"), name=f"{pk}-{attempt}-{row.name}", size=row.bytes)


class RunExport(ApiView):
    """A run for other people and programs."""

    @extend_schema(
        operation_id="runs_export",
        tags=TAGS,
        parameters=[OpenApiParameter("name", str, "path", enum=list(exports.RUN_EXPORTS))],
        responses={(200, "application/octet-stream"): bytes},
    )
    def get(self, request: Request, pk: str, name: str) -> HttpResponseBase:
        """Download a report, timeline or table made from the stored evidence; 409 says which evidence is missing."""
        run = run_for(request, pk)
        with TemporaryDirectory(prefix="headway-export-") as folder:
            path = exports.write_export(run=run, name=name, folder=Path(folder))
            if path is None:
                raise Http404
            return attachment(path.open("rb"), name=f"{pk}-{name}", size=path.stat().st_size)


def _cancel_effect(run: Run) -> str:
    if run.state in TERMINAL_STATES:
        return f"Nothing: the run is {run.get_state_display().lower()} already."
    if run.cancel_requested_at is not None:
        return "Nothing more: it was asked for already and is under way."
    if run.state in LEASED_STATES:
        return "The run is stopped within seconds; what was measured so far is kept."
    return "The run leaves the queue at once; it never starts."


def _suffix(stored_name: str | None) -> str:
    """The file ending of a server-made storage name: everything from the first dot of its last part."""
    last = (stored_name or "").rsplit("/", 1)[-1]
    return last[last.index(".") :] if "." in last else ""
