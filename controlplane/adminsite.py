"""What the admin pages of all apps share: read-only models, spec fields, and actions that go through services."""

from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Model, QuerySet
from django.forms.widgets import MediaDefiningClass
from django.http import HttpRequest
from unfold.admin import ModelAdmin
from unfold.widgets import UnfoldAdminTextareaWidget

from controlplane.access import require_person
from controlplane.accounts.models import User
from scheduler_core.spec.yamltext import dump_yaml, load_yaml
from scheduler_core.types.errors import HeadwayError, InputError


class ServiceAdmin(ModelAdmin):  # type: ignore[misc]
    """A model whose rows are written by services alone: pages show them, actions call services, nobody deletes."""

    list_per_page = 50
    show_full_result_count = False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def apply(self, request: HttpRequest, rows: Iterable[Any], done: str, call: Callable[[Any, User], object]) -> None:
        """``call`` a service for each row and the acting person; what was done, and each refusal, is shown.

        Services check that person's permission on every row again.
        """
        who = require_person(request.user)
        count = 0
        for row in rows:
            try:
                call(row, who)
            except (HeadwayError, PermissionDenied) as error:
                self.message_user(request, f"{row}: {error}", messages.WARNING)
            else:
                count += 1
        if count:
            self.message_user(request, f"{count} {done}", messages.SUCCESS)


class AbstractAdmin(ABCMeta, MediaDefiningClass):
    """An admin that lacks one of its hooks cannot be registered."""


class ArchivableAdmin(ServiceAdmin, metaclass=AbstractAdmin):
    """Rows that can be hidden from lists and brought back, by `set_archived`, which calls the service."""

    actions: Sequence[str] = ("archive", "bring_back")

    @abstractmethod
    def set_archived(self, row: Any, user: User, *, archived: bool) -> None:
        """Hide ``row`` from lists, or bring it back."""

    @admin.action(description="Archive")
    def archive(self, request: HttpRequest, queryset: QuerySet[Model]) -> None:
        done = f"{self.opts.verbose_name_plural} archived"
        self.apply(request, queryset, done, lambda row, who: self.set_archived(row, who, archived=True))

    @admin.action(description="Bring back from the archive")
    def bring_back(self, request: HttpRequest, queryset: QuerySet[Model]) -> None:
        done = f"{self.opts.verbose_name_plural} back"
        self.apply(request, queryset, done, lambda row, who: self.set_archived(row, who, archived=False))


class VersionedAdmin(ArchivableAdmin):
    """Named lines of immutable specs: adding makes the first version, saving an edit the next one.

    `create` and `add_version` call the services; the form has a field ``spec``.
    """

    list_display = ("name", "owner", "id", "created_at", "archived_at")
    list_filter = (("archived_at", admin.EmptyFieldListFilter), "owner")
    search_fields = ("id", "name", "owner__username")
    list_select_related = ("owner",)

    @abstractmethod
    def create(self, *, owner: User, name: str, spec: Any) -> Model:
        """A new line with ``spec`` as its first version."""

    @abstractmethod
    def add_version(self, row: Any, user: User, spec: Any) -> None:
        """``spec`` as the next version of ``row``."""

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return bool(ModelAdmin.has_add_permission(self, request))

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return bool(ModelAdmin.has_change_permission(self, request, obj))

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> list[str]:
        return ["name", "owner"] if obj else []

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:  # noqa: FBT001
        spec = form.cleaned_data["spec"]
        if change:
            self.add_version(obj, require_person(request.user), spec)
        else:
            obj.pk = self.create(owner=obj.owner, name=obj.name, spec=spec).pk
            obj._state.adding = False


class SpecField(forms.CharField):
    """A spec written as YAML or JSON text; its value is the data."""

    widget = UnfoldAdminTextareaWidget(attrs={"rows": 24, "style": "font-family: monospace"})

    def to_python(self, value: Any) -> Any:
        try:
            return load_yaml(super().to_python(value) or "")
        except InputError as error:
            raise refused(error) from None

    def prepare_value(self, value: Any) -> Any:
        return dump_yaml(value) if isinstance(value, dict) else value


def refused(error: InputError) -> ValidationError:
    """The problems of a refused input as form errors."""
    return ValidationError([str(problem) for problem in error.problems])
