"""Reads of endpoints; none of them ever holds a secret in the open."""

from django.db.models import QuerySet

from controlplane.access import Person, visible
from controlplane.endpoints.models import Endpoint


def visible_to(user: Person) -> QuerySet[Endpoint]:
    """Endpoints that ``user`` may see, by name."""
    return visible(Endpoint.objects.select_related("owner").order_by("name", "id"), user)
