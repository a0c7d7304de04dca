"""What the admin pages of all apps share: read-only models, spec fields, and actions that go through services."""

from collections.abc import Callable, Iterable
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Model
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
