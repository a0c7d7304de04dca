"""API tokens: shown once, kept as a keyed digest, ended by time, revocation or their person's end."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.accounts import selectors, services
from controlplane.accounts.models import ApiToken, User
from controlplane.accounts.secrets import keyed_digest
from scheduler_core.types.errors import InputError


@pytest.fixture
def olga(db: None) -> User:
    return User.objects.create_user("olga", password="a long password")


def test_the_secret_opens_the_token_and_is_stored_nowhere(olga: User) -> None:
    issued = services.create_token(user=olga, name="pipeline")
    assert issued.secret.startswith(f"hw_{issued.row.prefix}_")
    assert selectors.token_by_secret(issued.secret) == issued.row
    stored = [str(value) for value in ApiToken.objects.values().get().values()]
    assert not any(issued.secret.rsplit("_", 1)[1] in value for value in stored)


def test_the_digest_depends_on_the_secret_key(olga: User, settings: Any) -> None:
    """A copied database is of no use in another installation."""
    issued = services.create_token(user=olga, name="pipeline")
    settings.SECRET_KEY = "another-installation-" + "1" * 40
    assert selectors.token_by_secret(issued.secret) is None
    assert keyed_digest("token", "x") != keyed_digest("link", "x")


@pytest.mark.parametrize(
    "change",
    [lambda s: s[:-1], lambda s: s + "x", lambda s: s.upper(), lambda s: "hw_" + s, lambda s: "", lambda s: s + "é"],
)
def test_nothing_else_opens_it(olga: User, change: Any) -> None:
    issued = services.create_token(user=olga, name="pipeline")
    assert selectors.token_by_secret(change(issued.secret)) is None


def test_it_ends_by_time_revocation_and_with_its_person(olga: User) -> None:
    issued = services.create_token(user=olga, name="pipeline", expires_at=timezone.now() + timedelta(hours=1))
    ApiToken.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert selectors.token_by_secret(issued.secret) is None
    ApiToken.objects.update(expires_at=None)
    assert selectors.token_by_secret(issued.secret)
    User.objects.update(is_active=False)
    assert selectors.token_by_secret(issued.secret) is None
    User.objects.update(is_active=True)
    services.revoke_token(token=issued.row)
    assert selectors.token_by_secret(issued.secret) is None


def test_every_token_ends_some_day(olga: User) -> None:
    issued = services.create_token(user=olga, name="pipeline")
    assert issued.row.expires_at is not None
    assert timezone.now() < issued.row.expires_at <= timezone.now() + services.TOKEN_LIFETIME


def test_a_bad_name_or_expiry_is_told_with_its_field(olga: User) -> None:
    with pytest.raises(InputError) as caught:
        services.create_token(user=olga, name=" ", expires_at=timezone.now() - timedelta(days=1))
    assert [problem.where for problem in caught.value.problems] == ["name", "expires_at"]


def test_use_is_noted_to_the_minute(olga: User) -> None:
    token = services.create_token(user=olga, name="pipeline").row
    services.note_token_use(token)
    token.refresh_from_db()
    first = token.last_used_at
    services.note_token_use(token)
    token.refresh_from_db()
    assert first is not None
    assert token.last_used_at == first


def test_people_are_made_with_a_checked_password(db: None) -> None:
    with pytest.raises(InputError) as caught:
        services.create_user(username="tom", password="12345")
    assert {problem.where for problem in caught.value.problems} == {"password"}
    with pytest.raises(InputError):
        services.create_user(username="no spaces please", password=None)
    services.create_user(username="tom", password=None)
    with pytest.raises(InputError):
        services.create_user(username="tom", password=None)
    assert not User.objects.get(username="tom").has_usable_password()
