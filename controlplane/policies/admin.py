from typing import Any

from django.contrib import admin
from django.forms import ModelForm

from controlplane.accounts.models import User
from controlplane.adminsite import ServiceAdmin, SpecField, VersionedAdmin, refused
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
class PolicyAdmin(VersionedAdmin):
    form = PolicyForm

    def create(self, *, owner: User, name: str, spec: Any) -> Policy:
        return create_policy(owner=owner, name=name, spec=spec).policy

    def add_version(self, row: Policy, user: User, spec: Any) -> None:
        add_version(policy=row, user=user, spec=spec)

    def set_archived(self, row: Policy, user: User, *, archived: bool) -> None:
        set_archived(policy=row, user=user, archived=archived)


@admin.register(PolicyVersion)
class PolicyVersionAdmin(ServiceAdmin):
    list_display = ["policy", "number", "id", "digest", "created_by", "created_at"]
    search_fields = ["id", "policy__name", "digest"]
    list_select_related = ["policy", "created_by"]
