"""Changes to people, tokens and sign-in links."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import urlencode

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.urls import reverse
from django.utils import timezone

from controlplane.accounts.models import ApiToken, SignInLink, User
from controlplane.accounts.secrets import PREFIX_LENGTH, TOKEN_MARK, keyed_digest, random_text
from scheduler_core.types.errors import InputError, Problem

LINK_LIFETIME = timedelta(minutes=15)
TOKEN_LIFETIME = timedelta(days=90)
_LAST_USED_GRAIN = timedelta(minutes=1)


@dataclass(frozen=True)
class IssuedToken:
    """A new token's row and its secret, which exists nowhere else and cannot be shown again."""

    row: ApiToken
    secret: str


def create_user(*, username: str, password: str | None, staff: bool = False) -> User:
    """A new person; without ``password`` they can come in only by sign-in link or token.

    Raises:
        InputError: the name is taken or unusable, or the password is too weak.
    """
    user = User(username=username, is_staff=staff, is_superuser=staff)
    try:
        user.full_clean(exclude=["password"])
        if password is not None:
            validate_password(password, user)
    except ValidationError as error:
        where = "username" if hasattr(error, "error_dict") else "password"
        raise InputError([Problem(where, message) for message in error.messages]) from None
    user.set_password(password)
    user.save()
    return user


def issue_sign_in_link(user: User, *, lifetime: timedelta = LINK_LIFETIME, then: str = "") -> str:
    """URL path that signs ``user`` in once within ``lifetime``, and leads on to the path ``then``."""
    secret = random_text(40)
    now = timezone.now()
    SignInLink.objects.filter(expires_at__lt=now - timedelta(days=1)).delete()
    SignInLink.objects.create(user=user, digest=keyed_digest("link", secret), expires_at=now + lifetime)
    path = reverse("sign-in-link", args=[secret])
    return f"{path}?{urlencode({'next': then})}" if then else path


def redeem_sign_in_link(secret: str) -> User | None:
    """The person of an unused, unexpired link, which is thereby used up; None for any other.

    The conditional update lets exactly one of several simultaneous calls through.
    """
    digest = keyed_digest("link", secret)
    now = timezone.now()
    fresh = SignInLink.objects.filter(digest=digest, used_at=None, expires_at__gt=now, user__is_active=True)
    if fresh.update(used_at=now) != 1:
        return None
    return SignInLink.objects.select_related("user").get(digest=digest).user


def create_token(*, user: User, name: str, read_only: bool = False, expires_at: datetime | None = None) -> IssuedToken:
    """A new API token, valid until ``expires_at`` (absent: for `TOKEN_LIFETIME`).

    Raises:
        InputError: the name is empty or too long, or the expiry lies in the past.
    """
    name = name.strip()
    now = timezone.now()
    problems = []
    if not 1 <= len(name) <= 100:
        problems.append(Problem("name", "give the token a name of 1 to 100 characters, such as where it is used"))
    if expires_at is not None and expires_at <= now:
        problems.append(Problem("expires_at", "lies in the past; give a later time"))
    if problems:
        raise InputError(problems)
    prefix = random_text(PREFIX_LENGTH)
    secret = f"{TOKEN_MARK}_{prefix}_{random_text(40)}"
    row = ApiToken.objects.create(
        user=user,
        name=name,
        prefix=prefix,
        digest=keyed_digest("token", secret),
        read_only=read_only,
        expires_at=expires_at or now + TOKEN_LIFETIME,
    )
    return IssuedToken(row, secret)


def revoke_token(*, token: ApiToken) -> None:
    """Make a token useless at once."""
    token.delete()


def note_token_use(token: ApiToken) -> None:
    """Keep when a token was last used, to the minute: not every request should write."""
    now = timezone.now()
    if token.last_used_at is None or now - token.last_used_at > _LAST_USED_GRAIN:
        ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)
