from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from controlplane.adminsite import ServiceAdmin
from controlplane.fleet.models import Profile, Worker
from controlplane.fleet.services import set_draining


@admin.register(Worker)
class WorkerAdmin(ServiceAdmin):
    list_display = ["name", "condition", "device_kind", "device", "host", "pid", "started_at", "heartbeat_at"]
    list_filter = ["device_kind", "draining"]
    search_fields = ["name", "host", "device"]
    actions = ["drain", "resume"]

    @admin.display(description="status")
    def condition(self, worker: Worker) -> str:
        return worker.status()

    @admin.action(description="Drain: finish the run, take no other")
    def drain(self, request: HttpRequest, queryset: QuerySet[Worker]) -> None:
        self.apply(request, queryset, "workers drain", lambda w, who: set_draining(worker=w, user=who, draining=True))

    @admin.action(description="Take runs again")
    def resume(self, request: HttpRequest, queryset: QuerySet[Worker]) -> None:
        self.apply(request, queryset, "workers resume", lambda w, who: set_draining(worker=w, user=who, draining=False))


@admin.register(Profile)
class ProfileAdmin(ServiceAdmin):
    list_display = ["name", "model", "device", "owner", "run", "created_at"]
    search_fields = ["id", "name", "owner__username"]
    list_select_related = ["owner", "run"]

    @admin.display(description="model")
    def model(self, profile: Profile) -> str:
        return str(profile.data.get("model", ""))

    @admin.display(description="device")
    def device(self, profile: Profile) -> str:
        return str(profile.data.get("device", ""))
