from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.admin import TabularInline

from controlplane.adminsite import ServiceAdmin
from controlplane.runs.models import Attempt, Outbox, Run, Transition
from controlplane.runs.services import force_close, request_cancel, retry_run


class _Listed(TabularInline):  # type: ignore[misc]
    extra = 0
    can_delete = False
    tab = True

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class AttemptInline(_Listed):
    model = Attempt
    fields = readonly_fields = ["number", "worker", "started_at", "ended_at", "outcome", "reason"]


class TransitionInline(_Listed):
    model = Transition
    fields = readonly_fields = ["at", "attempt", "before", "after", "actor", "reason"]


@admin.register(Run)
class RunAdmin(ServiceAdmin):
    list_display = ["id", "title", "kind", "state", "reason", "attempt", "device_kind", "lease_worker", "created_at"]
    list_filter = ["state", "kind", "device_kind", "owner"]
    search_fields = ["id", "title", "lease_worker", "owner__username"]
    list_select_related = ["owner"]
    inlines = [AttemptInline, TransitionInline]
    actions = ["cancel", "retry", "close_by_force"]

    @admin.action(description="Cancel")
    def cancel(self, request: HttpRequest, queryset: QuerySet[Run]) -> None:
        self.apply(request, queryset, "runs asked to end", lambda r, who: request_cancel(run=r, user=who))

    @admin.action(description="Retry as a new attempt")
    def retry(self, request: HttpRequest, queryset: QuerySet[Run]) -> None:
        self.apply(request, queryset, "runs queued again", lambda r, who: retry_run(run=r, user=who))

    @admin.action(description="Close by force (its worker is gone)")
    def close_by_force(self, request: HttpRequest, queryset: QuerySet[Run]) -> None:
        self.apply(request, queryset, "runs closed", lambda r, who: force_close(run=r, user=who))


@admin.register(Outbox)
class OutboxAdmin(ServiceAdmin):
    list_display = ["run", "attempt", "created_at", "due_at", "sent_at", "sends"]
    list_filter = [("sent_at", admin.EmptyFieldListFilter)]
    search_fields = ["run__id", "run__title"]
    list_select_related = ["run"]


@admin.register(Transition)
class TransitionAdmin(ServiceAdmin):
    list_display = ["at", "run", "attempt", "before", "after", "actor", "reason"]
    list_filter = ["after", "before"]
    search_fields = ["run__id", "run__title", "actor", "reason"]
    list_select_related = ["run"]


@admin.register(Attempt)
class AttemptAdmin(ServiceAdmin):
    list_display = ["run", "number", "worker", "started_at", "ended_at", "outcome", "reason"]
    list_filter = ["outcome", "worker"]
    search_fields = ["run__id", "run__title", "worker", "reason"]
    list_select_related = ["run"]
