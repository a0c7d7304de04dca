"""Admin of people and their credentials; secrets are never shown, tokens can only be revoked."""

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group
from django.http import HttpRequest
from unfold.admin import ModelAdmin
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from controlplane.accounts.models import ApiToken, SignInLink, User

admin.site.unregister(Group)


@admin.register(User)
class UserAdmin(DjangoUserAdmin, ModelAdmin):  # type: ignore[misc,type-arg]
    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    list_display = ("username", "email", "is_staff", "is_active", "last_login", "date_joined")
    list_filter = ("is_staff", "is_active")
    search_fields = ("username", "email")
    ordering = ("username",)


class _NoAddNoChange(ModelAdmin):  # type: ignore[misc]
    """Rows made by services only: they can be looked at and deleted."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False


@admin.register(ApiToken)
class ApiTokenAdmin(_NoAddNoChange):
    list_display = ("name", "user", "prefix", "read_only", "created_at", "expires_at", "last_used_at")
    list_filter = ("read_only",)
    list_select_related = ("user",)
    search_fields = ("name", "prefix", "user__username")
    exclude = ("digest",)


@admin.register(SignInLink)
class SignInLinkAdmin(_NoAddNoChange):
    list_display = ("user", "created_at", "expires_at", "used_at")
    list_select_related = ("user",)
    search_fields = ("user__username",)
    exclude = ("digest",)
