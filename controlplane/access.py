"""Who may see and who may change: the one rule behind pages, REST, sockets and admin actions.

Everyone signed in sees the installation's work; its owner and staff change it.
"""

from typing import Any, TypeVar

from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet

from controlplane.accounts.models import User

Person = User | AnonymousUser
ModelT = TypeVar("ModelT", bound=Model)


def may_see(user: Person) -> bool:
    """Whether ``user`` is someone signed in with an active account."""
    return user.is_authenticated and user.is_active


def visible(queryset: QuerySet[ModelT], user: Person) -> QuerySet[ModelT]:
    """``queryset`` for those who may see it, else nothing."""
    return queryset if may_see(user) else queryset.none()


def may_change(user: Person, thing: Any) -> bool:
    """Whether ``user`` owns ``thing`` (by its ``owner_id``) or is staff."""
    return may_see(user) and (user.is_staff or thing.owner_id == user.pk)


def require_change(user: Person, thing: Any) -> None:
    """``PermissionDenied`` unless ``user`` may change ``thing``."""
    if not may_change(user, thing):
        raise PermissionDenied(f"only its owner or staff may change {thing}")


def require_person(user: Person) -> User:
    """``user`` as the active account it is; ``PermissionDenied`` for anyone else."""
    if not isinstance(user, User) or not may_see(user):
        raise PermissionDenied("sign in first")
    return user
