from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest

from controlplane.accounts.models import User
from controlplane.adminsite import ServiceAdmin, SpecField, VersionedAdmin, refused
from controlplane.specs import brief
from controlplane.workloads.logs import CLIENTS, IMPORTED
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
from scheduler_core.spec.workload import WorkloadSpec
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
class WorkloadAdmin(VersionedAdmin):
    form = WorkloadForm

    def create(self, *, owner: User, name: str, spec: Any) -> Workload:
        return create_workload(owner=owner, name=name, spec=spec).workload

    def add_version(self, row: Workload, user: User, spec: Any) -> None:
        add_version(workload=row, user=user, spec=spec)

    def set_archived(self, row: Workload, user: User, *, archived: bool) -> None:
        set_archived(workload=row, user=user, archived=archived)


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

    format = forms.ChoiceField(
        required=False,
        choices=[("", "find out"), *(choice for choice in IMPORTED if choice[0] != CLIENTS)],
        help_text="ServeGen's clients are several files: Traces → Import a trace takes them together.",
    )
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
