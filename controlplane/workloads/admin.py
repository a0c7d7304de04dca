from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest

from controlplane.access import require_person
from controlplane.adminsite import ServiceAdmin, SpecField, refused
from controlplane.specs import brief
from controlplane.workloads.models import ArrivalPlan, Dataset, Workload, WorkloadVersion
from controlplane.workloads.services import (
    add_version,
    create_workload,
    delete_dataset,
    import_trace,
    inspect_trace,
    preview,
    set_archived,
)
from scheduler_core.spec.workload import TRACE_FORMATS, WorkloadSpec
from scheduler_core.types.errors import InputError

EXAMPLE = {
    "arrivals": {"poisson": {"rate_rps": 2}},
    "lengths": {"prompt": {"fixed": 128}, "output": {"fixed": 32}},
    "requests": 100,
}


class WorkloadForm(ModelForm):  # type: ignore[type-arg]
    """A new workload, or the next version of one; the service has the last word."""

    spec = SpecField(help_text="The workload as YAML or JSON. Saving an edit makes the next version.")

    class Meta:
        model = Workload
        fields = ["name", "owner"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        newest = self.instance.versions.first() if self.instance.pk and not self.instance._state.adding else None
        self.fields["spec"].initial = brief(WorkloadSpec, newest.spec) if newest else EXAMPLE

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        owner = cleaned.get("owner") or getattr(self.instance, "owner", None)
        if "spec" in cleaned and owner is not None:
            try:
                preview(spec=cleaned["spec"], user=owner)
            except InputError as error:
                self.add_error("spec", refused(error))
        return cleaned


@admin.register(Workload)
class WorkloadAdmin(ServiceAdmin):
    form = WorkloadForm
    list_display = ["name", "owner", "id", "created_at", "archived_at"]
    list_filter = [("archived_at", admin.EmptyFieldListFilter), "owner"]
    search_fields = ["id", "name", "owner__username"]
    list_select_related = ["owner"]
    actions = ["archive", "bring_back"]

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.has_perm("workloads.add_workload"))

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.has_perm("workloads.change_workload"))

    def get_readonly_fields(self, request: HttpRequest, obj: Workload | None = None) -> list[str]:
        return ["name", "owner"] if obj else []

    def save_model(self, request: HttpRequest, obj: Workload, form: Any, change: bool) -> None:  # noqa: FBT001
        spec = form.cleaned_data["spec"]
        if change:
            add_version(workload=obj, user=require_person(request.user), spec=spec)
        else:
            made = create_workload(owner=obj.owner, name=obj.name, spec=spec).workload
            obj.pk, obj._state.adding = made.pk, False

    @admin.action(description="Archive")
    def archive(self, request: HttpRequest, queryset: QuerySet[Workload]) -> None:
        self.apply(
            request,
            queryset,
            "workloads archived",
            lambda w, who: set_archived(workload=w, user=who, archived=True),
        )

    @admin.action(description="Bring back from the archive")
    def bring_back(self, request: HttpRequest, queryset: QuerySet[Workload]) -> None:
        self.apply(
            request, queryset, "workloads back", lambda w, who: set_archived(workload=w, user=who, archived=False)
        )


@admin.register(WorkloadVersion)
class WorkloadVersionAdmin(ServiceAdmin):
    list_display = ["workload", "number", "id", "plan", "dataset", "created_by", "created_at"]
    search_fields = ["id", "workload__name", "digest", "plan__digest"]
    list_select_related = ["workload", "plan", "dataset", "created_by"]


@admin.register(ArrivalPlan)
class ArrivalPlanAdmin(ServiceAdmin):
    list_display = ["digest", "requests", "prompt_tokens", "output_tokens", "span_s", "created_at"]
    search_fields = ["digest"]


class DatasetForm(ModelForm):  # type: ignore[type-arg]
    """An upload; it is kept only if its reader takes it whole."""

    format = forms.ChoiceField(required=False, choices=[("", "find out"), *((name, name) for name in TRACE_FORMATS)])
    options = forms.JSONField(required=False, help_text="How to read it: columns, time_unit, block_size, ...")

    class Meta:
        model = Dataset
        fields = ["name", "owner", "file", "format", "options"]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if cleaned.get("file"):
            try:
                inspect_trace(file=cleaned["file"], format=cleaned.get("format"), options=cleaned.get("options") or {})
            except InputError as error:
                self.add_error("file", refused(error))
        return cleaned


@admin.register(Dataset)
class DatasetAdmin(ServiceAdmin):
    form = DatasetForm
    list_display = ["name", "format", "bytes", "owner", "id", "created_at"]
    list_filter = ["format", "owner"]
    search_fields = ["id", "name", "sha256", "owner__username"]
    list_select_related = ["owner"]
    actions = ["delete_unused"]

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.has_perm("workloads.add_dataset"))

    def save_model(self, request: HttpRequest, obj: Dataset, form: Any, change: bool) -> None:  # noqa: FBT001
        given = form.cleaned_data
        made = import_trace(
            owner=obj.owner, file=given["file"], name=obj.name, format=given["format"], options=given["options"] or {}
        )
        obj.pk, obj._state.adding = made.pk, False

    @admin.action(description="Delete those that no workload plays")
    def delete_unused(self, request: HttpRequest, queryset: QuerySet[Dataset]) -> None:
        self.apply(request, queryset, "traces deleted", lambda d, who: delete_dataset(dataset=d, user=who))
