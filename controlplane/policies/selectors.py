"""Reads of policies."""

from typing import Any

from django.db.models import QuerySet

from controlplane.access import Person, visible
from controlplane.policies.models import Policy, PolicyVersion
from scheduler_core.policies.registry import manifests


def visible_to(user: Person) -> QuerySet[Policy]:
    """Policies that ``user`` may see, newest first, with owner and versions."""
    return visible(Policy.objects.select_related("owner").prefetch_related("versions"), user)


def versions_visible_to(user: Person) -> QuerySet[PolicyVersion]:
    """Versions that ``user`` may see, with their policy."""
    return visible(PolicyVersion.objects.select_related("policy", "policy__owner", "created_by"), user)


def presets() -> list[dict[str, Any]]:
    """Every preset and installed policy: name, what it does, its settings with help texts, its defaults."""
    return [manifest.canonical() for manifest in manifests().values()]
