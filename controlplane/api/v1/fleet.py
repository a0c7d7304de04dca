"""Workers, and the calibrated profiles of their devices."""

from typing import Any

from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.base import ApiView, ListView, created
from controlplane.api.fields import Input, Link, ObjectField, PolicySpecField, ProfileField, documented_by
from controlplane.api.v1.runs import RunOut, run_for
from controlplane.fleet import selectors, services
from controlplane.fleet.models import Profile, Worker
from scheduler_core.spec.server import ServerTarget
from scheduler_core.spec.target import Profile as ProfileSpec
from scheduler_core.spec.target import TorchTarget


@documented_by(TorchTarget)
class TorchTargetField(serializers.JSONField):
    """A torch target."""


@documented_by(ServerTarget)
class ServerTargetField(serializers.JSONField):
    """A server target."""


class WorkerOut(serializers.ModelSerializer[Worker]):
    """A worker and when it was last heard of."""

    alive = serializers.SerializerMethodField()
    fingerprint = ObjectField()

    class Meta:
        model = Worker
        fields = (
            "name", "host", "pid", "device_kind", "device", "alive", "draining", "fingerprint", "started_at",
            "heartbeat_at",
        )  # fmt: skip

    def get_alive(self, worker: Worker) -> bool:
        return worker.name in self.context["live"]


class ProfileOut(serializers.ModelSerializer[Profile]):
    """A calibrated profile."""

    url = Link("profile", pk="pk")
    owner = serializers.CharField(source="owner.username")
    profile = ProfileField(source="data")
    run = serializers.CharField(source="run_id", allow_null=True)

    class Meta:
        model = Profile
        fields = ("id", "url", "name", "owner", "profile", "run", "created_at")


class CalibrateIn(Input):
    """What to calibrate, and what to call the profile: the engine on a worker, or a server by a probe from outside."""

    name = serializers.CharField(max_length=64)
    target = TorchTargetField(required=False, help_text="Absent, and no server: the default target.")
    server = ServerTargetField(required=False, help_text="A server instead: url, endpoint or launch.")
    policy = PolicySpecField(
        required=False,
        help_text="Of a server: what it is launched with, and settings that it does not show itself, such as "
        "batch.token_budget.",
    )
    quick = serializers.BooleanField(required=False, default=False, help_text="Fewer steps, a coarser fit.")

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        if "target" in values and "server" in values:
            raise serializers.ValidationError({"server": "give either target or server"})
        if "policy" in values and "server" not in values:
            raise serializers.ValidationError({"policy": "is said of a server"})
        return values


class DrainIn(Input):
    """Whether a worker is to take runs."""

    draining = serializers.BooleanField()


class Workers(ApiView):
    """All workers ever seen."""

    @extend_schema(operation_id="workers_list", tags=["workers"], responses=WorkerOut(many=True))
    def get(self, request: Request) -> Response:
        """Workers by name, with when each was last heard of."""
        rows = selectors.workers_visible_to(request.user)
        return Response(WorkerOut(rows, many=True, context=_worker_context(request)).data)


class WorkerDrain(ApiView):
    """Taking a worker out of service, and back."""

    @extend_schema(operation_id="workers_drain", tags=["workers"], request=DrainIn, responses=WorkerOut)
    def post(self, request: Request, name: str) -> Response:
        """Have a worker take no further runs, or take runs again; staff only."""
        worker = get_object_or_404(selectors.workers_visible_to(request.user), name=name)
        services.set_draining(worker=worker, user=self.person, draining=self.read(DrainIn)["draining"])
        return Response(WorkerOut(worker, context=_worker_context(request)).data)


class Profiles(ListView):
    """All profiles; upload of one more."""

    @extend_schema(operation_id="profiles_list", tags=["profiles"], responses=ProfileOut(many=True))
    def get(self, request: Request) -> Response:
        """Profiles, newest first."""
        return self.page(selectors.profiles_visible_to(request.user), ProfileOut)

    @extend_schema(operation_id="profiles_upload", tags=["profiles"], request=ProfileSpec, responses={201: ProfileOut})
    def post(self, request: Request) -> Response:
        """Upload a profile made by ``headway calibrate``."""
        profile = services.upload_profile(owner=self.person, data=request.data)
        data = _profile(request, profile.pk)
        return created(data, data["url"])


class ProfileDetail(ApiView):
    """One profile."""

    @extend_schema(operation_id="profiles_show", tags=["profiles"], responses=ProfileOut)
    def get(self, request: Request, pk: str) -> Response:
        """One profile."""
        return Response(_profile(request, pk))


class Calibrate(ApiView):
    """A calibration on a worker."""

    @extend_schema(operation_id="profiles_calibrate", tags=["profiles"], request=CalibrateIn, responses={201: RunOut})
    def post(self, request: Request) -> Response:
        """Queue a calibration run; the profile appears when it ends. A probe of a server takes up to ten minutes."""
        values = self.read(CalibrateIn)
        asked = {"owner": self.person, "name": values["name"], "quick": values["quick"]}
        if "server" in values:
            run = services.start_probe(**asked, server=values["server"], policy=values.get("policy"))
        else:
            run = services.start_calibration(**asked, target=values.get("target", {}))
        data = RunOut(run_for(request, run.pk), context={"request": request}).data
        return created(data, data["url"])


def _worker_context(request: Request) -> dict[str, Any]:
    """Output context: who lives is found once for a whole list."""
    return {"request": request, "live": set(selectors.live_workers().values_list("name", flat=True))}


def _profile(request: Request, pk: str) -> dict[str, Any]:
    row = get_object_or_404(selectors.profiles_visible_to(request.user), pk=pk)
    return dict(ProfileOut(row, context={"request": request}).data)
