from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest
from unfold.admin import TabularInline

from controlplane.accounts.models import User
from controlplane.adminsite import ArchivableAdmin, ServiceAdmin, SpecField, refused
from controlplane.experiments.models import Arm, ArmRun, Experiment
from controlplane.experiments.services import (
    cancel_experiment,
    check_experiment,
    decide_again,
    set_archived,
    submit_experiment,
)
from scheduler_core.types.errors import InputError


class ExperimentForm(ModelForm):  # type: ignore[type-arg]
    """A submission: the same YAML as on the command line."""

    spec = SpecField(help_text="The experiment as YAML or JSON; workload and arms may be saved ones: {use: ID}.")

    class Meta:
        model = Experiment
        fields = ["owner"]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if "spec" in cleaned and "owner" in cleaned:
            try:
                check_experiment(data=cleaned["spec"], user=cleaned["owner"])
            except InputError as error:
                self.add_error("spec", refused(error))
        return cleaned


class ArmInline(TabularInline):  # type: ignore[misc]
    model = Arm
    fields = readonly_fields = ["position", "name", "is_baseline", "policy_version"]
    extra = 0
    can_delete = False

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Experiment)
class ExperimentAdmin(ArchivableAdmin):
    list_display = ["name", "status", "reason", "owner", "plan", "id", "created_at", "decided_at"]
    list_filter = ["status", ("archived_at", admin.EmptyFieldListFilter), "owner"]
    search_fields = ["id", "name", "digest", "owner__username", "notes"]
    list_select_related = ["owner", "plan"]
    actions = ["cancel", "decide", *ArchivableAdmin.actions]

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.has_perm("experiments.add_experiment"))

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:  # noqa: FBT001, FBT002
        return super().get_form(request, obj, change, **kwargs) if obj else ExperimentForm

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return super().get_fields(request, obj) if obj else ["owner", "spec"]

    def get_inlines(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        return [ArmInline] if obj else []

    def save_model(self, request: HttpRequest, obj: Experiment, form: Any, change: bool) -> None:  # noqa: FBT001
        made = submit_experiment(owner=obj.owner, data=form.cleaned_data["spec"])
        obj.pk, obj.name, obj._state.adding = made.pk, made.name, False

    @admin.action(description="Cancel every run that has not ended")
    def cancel(self, request: HttpRequest, queryset: QuerySet[Experiment]) -> None:
        self.apply(request, queryset, "experiments cancelled", lambda e, who: cancel_experiment(experiment=e, user=who))

    @admin.action(description="Compute the verdict again")
    def decide(self, request: HttpRequest, queryset: QuerySet[Experiment]) -> None:
        self.apply(request, queryset, "experiments decided", lambda e, who: decide_again(experiment=e, user=who))

    def set_archived(self, row: Experiment, user: User, *, archived: bool) -> None:
        set_archived(experiment=row, user=user, archived=archived)


@admin.register(ArmRun)
class ArmRunAdmin(ServiceAdmin):
    list_display = ["arm", "repeat", "run"]
    search_fields = ["arm__name", "arm__experiment__name", "run__id"]
    list_select_related = ["arm", "run"]
