"""Writes of policies. A version is immutable; changing a policy makes the next one."""

from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from controlplane.access import require_change, require_person
from controlplane.accounts.models import User
from controlplane.errors import ConflictError
from controlplane.policies.models import Policy, PolicyVersion
from controlplane.specs import parse_name
from scheduler_core.policies.resolving import resolve
from scheduler_core.spec.parse import parse
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.types.errors import InputError, Problem


def read_policy(spec: object) -> tuple[PolicySpec, PolicySpec]:
    """A policy as written and with every default of its preset filled in; `InputError` names what is wrong."""
    written = parse(PolicySpec, spec)
    return written, resolve(written)


def create_policy(*, owner: User, name: str, spec: object) -> PolicyVersion:
    """A new policy with its first version. `InputError` for a bad spec or name, or a name the owner has in use."""
    require_person(owner)
    name = parse_name(name)
    written, resolved = read_policy(spec)
    try:
        with transaction.atomic():
            policy = Policy.objects.create(owner=owner, name=name)
            return _version(policy, owner, 1, written, resolved)
    except IntegrityError:
        raise InputError([Problem("name", f"you already have a policy named {name!r}")]) from None


def add_version(*, policy: Policy, user: User, spec: object) -> PolicyVersion:
    """The next version; the newest one itself when the spec is equal to it."""
    require_change(user, policy)
    written, resolved = read_policy(spec)
    newest = policy.versions.first()
    if newest is not None and newest.digest == resolved.digest() and newest.spec == written.canonical():
        return newest
    try:
        with transaction.atomic():
            number = (policy.versions.values_list("number", flat=True).first() or 0) + 1
            return _version(policy, user, number, written, resolved)
    except IntegrityError:
        raise ConflictError("another version was added at that moment; look at it and try again") from None


def set_archived(*, policy: Policy, user: User, archived: bool) -> Policy:
    """Hide from, or bring back to, lists and pickers; experiments that used it keep it."""
    require_change(user, policy)
    policy.archived_at = timezone.now() if archived else None
    policy.save(update_fields=["archived_at"])
    return policy


def _version(policy: Policy, user: User, number: int, written: PolicySpec, resolved: PolicySpec) -> PolicyVersion:
    fields: dict[str, Any] = {"spec": written.canonical(), "resolved": resolved.canonical()}
    return PolicyVersion.objects.create(
        policy=policy, number=number, digest=resolved.digest(), created_by=user, **fields
    )
