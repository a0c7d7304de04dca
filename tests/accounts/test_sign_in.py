"""Signing in by password, and by a link that works once, also when several ask at the same moment."""

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from controlplane.accounts import services, throttle
from controlplane.accounts.models import SignInLink, User
from controlplane.embedded.home import Lock, locate

PASSWORD = "a long password"


@pytest.fixture(autouse=True)
def _no_counts() -> None:
    cache.clear()


@pytest.fixture
def olga(db: None) -> User:
    return User.objects.create_user("olga", password=PASSWORD)


def _signed_in(client: Client) -> bool:
    return "_auth_user_id" in client.session


def _secret(path: str) -> str:
    return path.split("/")[2]


def test_looking_at_a_link_does_not_use_it_and_posting_signs_in(olga: User, client: Client) -> None:
    path = services.issue_sign_in_link(olga, then="/experiments/")
    for _ in range(3):
        assert client.get(path).status_code == 200
        assert client.head(path).status_code == 200
    assert not _signed_in(client)
    response = client.post(path)
    assert response.status_code == 302
    assert response["Location"] == "/experiments/"
    assert _signed_in(client)


def test_a_link_works_once(olga: User, client: Client) -> None:
    path = services.issue_sign_in_link(olga)
    client.post(path)
    other = Client()
    assert other.get(path).status_code == 410
    assert other.post(path).status_code == 410
    assert not _signed_in(other)


def test_a_link_leads_nowhere_else(olga: User, client: Client) -> None:
    path = services.issue_sign_in_link(olga, then="https://evil.example/")
    assert client.post(path)["Location"] == "/"


def test_a_link_is_stored_as_a_digest_and_told_to_no_other_site(olga: User, client: Client) -> None:
    path = services.issue_sign_in_link(olga)
    assert _secret(path) not in str(list(SignInLink.objects.values()))
    assert client.get(path)["Referrer-Policy"] == "same-origin"


def test_an_old_link_and_one_of_an_inactive_person_are_gone(olga: User, client: Client) -> None:
    path = services.issue_sign_in_link(olga)
    SignInLink.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert client.post(path).status_code == 410
    path = services.issue_sign_in_link(olga)
    User.objects.update(is_active=False)
    assert client.post(path).status_code == 410


def test_a_link_needs_the_forms_csrf_token(olga: User) -> None:
    client = Client(enforce_csrf_checks=True)
    path = services.issue_sign_in_link(olga)
    assert client.post(path).status_code == 403
    assert SignInLink.objects.get().used_at is None


@pytest.mark.django_db(transaction=True)
def test_of_many_at_once_exactly_one_gets_in() -> None:
    olga = User.objects.create_user("olga", password=PASSWORD)
    secret = _secret(services.issue_sign_in_link(olga))
    start = threading.Barrier(6)
    let_in: list[User] = []

    def ask() -> None:
        start.wait()
        try:
            user = services.redeem_sign_in_link(secret)
            if user is not None:
                let_in.append(user)
        finally:
            connection.close()

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert let_in == [olga]


def test_a_password_signs_in_and_out(olga: User, client: Client) -> None:
    page = client.post(reverse("login"), {"username": "olga", "password": PASSWORD})
    assert page.status_code == 302
    assert _signed_in(client)
    client.post(reverse("logout"))
    assert not _signed_in(client)


def test_guessing_is_slowed_down_and_even_the_right_password_waits(olga: User, client: Client) -> None:
    for _ in range(throttle.PER_NAME_AND_ADDRESS):
        assert client.post(reverse("login"), {"username": "olga", "password": "wrong"}).status_code == 200
    response = client.post(reverse("login"), {"username": "Olga", "password": PASSWORD})
    assert response.status_code == 429
    assert int(response["Retry-After"]) == throttle.WINDOW_S
    assert not _signed_in(client)
    elsewhere = client.post(reverse("login"), {"username": "olga", "password": PASSWORD}, REMOTE_ADDR="192.0.2.7")
    assert elsewhere.status_code == 302


def test_one_address_cannot_try_every_name(db: None, client: Client) -> None:
    for number in range(throttle.PER_ADDRESS):
        throttle.note_failure(f"name{number}", "127.0.0.1")
    assert client.post(reverse("login"), {"username": "fresh", "password": "x"}).status_code == 429


def test_a_success_forgets_the_failures(olga: User, client: Client) -> None:
    for _ in range(throttle.PER_NAME_AND_ADDRESS - 1):
        client.post(reverse("login"), {"username": "olga", "password": "wrong"})
    client.post(reverse("login"), {"username": "olga", "password": PASSWORD})
    assert not throttle.is_blocked("olga", "127.0.0.1")


def test_signing_in_works_while_the_cache_is_gone(olga: User, client: Client, monkeypatch: Any) -> None:
    def gone(*_: Any, **__: Any) -> None:
        raise ConnectionError("no cache")

    for name in ("get_many", "add", "incr", "delete"):
        monkeypatch.setattr(f"controlplane.accounts.throttle.cache.{name}", gone)
    client.post(reverse("login"), {"username": "olga", "password": "wrong"})
    assert client.post(reverse("login"), {"username": "olga", "password": PASSWORD}).status_code == 302


def test_the_commands_print_a_working_link_and_token(olga: User, client: Client, capsys: Any) -> None:
    call_command("sign_in_link", "olga", "--base", "http://127.0.0.1:9000/")
    link = capsys.readouterr().out.strip()
    assert link.startswith("http://127.0.0.1:9000/sign-in/")
    assert client.post(link.removeprefix("http://127.0.0.1:9000")).status_code == 302
    call_command("api_token", "olga", "--read-only")
    secret = capsys.readouterr().out.strip()
    assert client.get("/api/v1/me", headers={"Authorization": f"Bearer {secret}"}).json()["token"]["read_only"]
    for command in ("sign_in_link", "api_token"):
        with pytest.raises(CommandError, match="nobody"):
            call_command(command, "nobody")
    with pytest.raises(CommandError, match="minutes"):
        call_command("sign_in_link", "olga", "--minutes", "0")


def test_a_token_is_made_on_the_account_page_shown_once_and_revoked(olga: User, client: Client) -> None:
    client.force_login(olga)
    made = client.post(reverse("account"), {"name": "laptop", "days": 30})
    issued = made.context["issued"]
    assert issued.secret in made.content.decode()
    assert issued.secret not in client.get(reverse("account")).content.decode()
    assert client.post(reverse("token-revoke", args=[issued.row.pk])).status_code == 302
    assert client.get("/api/v1/me", headers={"Authorization": f"Bearer {issued.secret}"}).status_code == 401


def test_nobody_revokes_a_token_of_someone_else(olga: User, client: Client) -> None:
    token = services.create_token(user=olga, name="laptop").row
    client.force_login(User.objects.create_user("tom"))
    assert client.post(reverse("token-revoke", args=[token.pk])).status_code == 404


@pytest.mark.django_db
def test_a_link_from_the_command_line_leads_to_the_stack_of_this_home(
    olga: User, settings: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.HOME = tmp_path
    call_command("sign_in_link", "olga")
    lock = Lock(locate({"HEADWAY_HOME": str(tmp_path)}, tmp_path))
    lock.take("pid 7, http://127.0.0.1:8001")
    call_command("sign_in_link", "olga")
    lock.release()
    call_command("sign_in_link", "olga", base="https://headway.example/")
    links = [line.partition("/sign-in/")[0] for line in capsys.readouterr().out.splitlines()]
    assert links == ["http://127.0.0.1:8000", "http://127.0.0.1:8001", "https://headway.example"]
