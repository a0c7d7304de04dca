from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest

from controlplane.access import require_person
from controlplane.adminsite import ServiceAdmin, SpecField, refused
from controlplane.policies.models import Policy, PolicyVersion
from controlplane.policies.services import add_version, create_policy, read_policy, set_archived
from controlplane.specs import brief
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.types.errors import InputError


class PolicyForm(ModelForm):  # type: ignore[type-arg]
    """A new policy, or the next version of one; the service has the last word."""

    spec = SpecField(help_text="The policy as YAML or JSON. Saving an edit makes the next version.")

    class Meta:
        model = Policy
        fields = ["name", "owner"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        newest = self.instance.versions.first() if self.instance.pk and not self.instance._state.adding else None
        self.fields["spec"].initial = brief(PolicySpec, newest.spec) if newest else {"policy": "vllm_v1"}

    def clean_spec(self) -> Any:
        try:
            read_policy(self.cleaned_data["spec"])
        except InputError as error:
            raise refused(error) from None
        return self.cleaned_data["spec"]


@admin.register(Policy)
class PolicyAdmin(ServiceAdmin):
    form = PolicyForm
    list_display = ["name", "owner", "id", "created_at", "archived_at"]
    list_filter = [("archived_at", admin.EmptyFieldListFilter), "owner"]
    search_fields = ["id", "name", "owner__username"]
    list_select_related = ["owner"]
    actions = ["archive", "bring_back"]

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.has_perm("policies.add_policy"))

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.has_perm("policies.change_policy"))

    def get_readonly_fields(self, request: HttpRequest, obj: Policy | None = None) -> list[str]:
        return ["name", "owner"] if obj else []

    def save_model(self, request: HttpRequest, obj: Policy, form: Any, change: bool) -> None:  # noqa: FBT001
        spec = form.cleaned_data["spec"]
        if change:
            add_version(policy=obj, user=require_person(request.user), spec=spec)
        else:
            made = create_policy(owner=obj.owner, name=obj.name, spec=spec).policy
            obj.pk, obj._state.adding = made.pk, False

    @admin.action(description="Archive")
    def archive(self, request: HttpRequest, queryset: QuerySet[Policy]) -> None:
        self.apply(
            request, queryset, "policies archived", lambda p, who: set_archived(policy=p, user=who, archived=True)
        )

    @admin.action(description="Bring back from the archive")
    def bring_back(self, request: HttpRequest, queryset: QuerySet[Policy]) -> None:
        self.apply(request, queryset, "policies back", lambda p, who: set_archived(policy=p, user=who, archived=False))


@admin.register(PolicyVersion)
class PolicyVersionAdmin(ServiceAdmin):
    list_display = ["policy", "number", "id", "digest", "created_by", "created_at"]
    search_fields = ["id", "policy__name", "digest"]
    list_select_related = ["policy", "created_by"]
