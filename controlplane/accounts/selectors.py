"""Reads of tokens and sign-in links."""

import hmac

from django.db.models import QuerySet
from django.utils import timezone

from controlplane.accounts.models import ApiToken, SignInLink, User
from controlplane.accounts.secrets import keyed_digest, split_token


def tokens_of(user: User) -> QuerySet[ApiToken]:
    """A person's tokens, newest first."""
    return ApiToken.objects.filter(user=user).order_by("-created_at", "pk")


def token_by_secret(secret: str) -> ApiToken | None:
    """The live token (not expired, its person active) that ``secret`` opens, or None."""
    parts = split_token(secret)
    if parts is None:
        return None
    row = ApiToken.objects.select_related("user").filter(prefix=parts[0]).first()
    if row is None or not hmac.compare_digest(row.digest, keyed_digest("token", secret)):
        return None
    expired = row.expires_at is not None and row.expires_at <= timezone.now()
    return None if expired or not row.user.is_active else row


def user_of_link(secret: str) -> User | None:
    """Whom an unused, unexpired sign-in link would sign in; the link stays usable."""
    link = (
        SignInLink.objects.select_related("user")
        .filter(digest=keyed_digest("link", secret), used_at=None, expires_at__gt=timezone.now())
        .filter(user__is_active=True)
        .first()
    )
    return link.user if link else None
