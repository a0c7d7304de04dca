from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from controlplane.adminsite import ServiceAdmin
from controlplane.endpoints.models import Endpoint
from controlplane.endpoints.services import check


@admin.register(Endpoint)
class EndpointAdmin(ServiceAdmin):
    list_display = ["name", "url", "owner", "has_secret", "verify_tls", "checked_at", "created_at"]
    search_fields = ["id", "name", "url", "owner__username"]
    list_select_related = ["owner"]
    exclude = ["sealed_secret"]
    actions = ["check_now"]

    @admin.display(boolean=True, description="secret")
    def has_secret(self, endpoint: Endpoint) -> bool:
        return bool(endpoint.sealed_secret)

    @admin.action(description="Check that it answers")
    def check_now(self, request: HttpRequest, queryset: QuerySet[Endpoint]) -> None:
        self.apply(request, queryset, "endpoints checked", lambda row, who: check(endpoint=row, user=who))
