"""Every URL x every verb x every kind of caller, from the URL map itself: a new view is covered the day it is added."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.urls.resolvers import URLPattern

from controlplane.accounts.models import User
from controlplane.api.urls import urlpatterns
from tests.api.conftest import Api, World

VERBS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")
PUBLIC = {"health"}
OWNER_ONLY = {
    "workload-versions", "policy-versions", "experiment-cancel", "run-cancel", "run-retry", "run-close", "experiment",
    "workload", "policy", "dataset", "study-cancel", "study-resume", "endpoint", "endpoint-check", "endpoint-try",
}  # fmt: skip
STAFF_ONLY = {"worker-drain"}
NEED_EVIDENCE = {"run-export", "run-requests", "run-path", "experiment-export"}  # the world's runs have not ended


def _names() -> list[str]:
    return [str(pattern.name) for pattern in urlpatterns]


def _address(pattern: URLPattern, world: World) -> str:
    wanted = pattern.pattern.converters
    arguments = {key: value for key, value in world.arguments(str(pattern.name)).items() if key in wanted}
    return reverse(f"api:{pattern.name}", kwargs=arguments)


def _all(world: World) -> list[tuple[str, str, set[str]]]:
    """(name, address, verbs the view knows) of every view."""
    found = []
    for pattern in urlpatterns:
        view: Any = pattern.callback
        known = {verb for verb in ("GET", "POST", "PUT", "PATCH", "DELETE") if hasattr(view.view_class, verb.lower())}
        found.append((str(pattern.name), _address(pattern, world), known))
    return found


def test_no_stranger_gets_in_anywhere(world: World, stranger: Api) -> None:
    for name, address, _ in _all(world):
        for verb in VERBS:
            status = stranger.call(verb, address).status_code
            if name in PUBLIC:
                assert status in (200, 405), (name, verb, status)
            else:
                assert status == 401, (name, verb, status)


def test_a_cookie_of_another_person_is_no_way_in_either(world: World, stranger: Api) -> None:
    """A wrong token is not forgiven because a good session lies beside it."""
    stranger.client.force_login(world.run.owner)
    for name, address, _ in _all(world):
        if name not in PUBLIC:
            headers = {"Authorization": "Bearer hw_0000000000_" + "x" * 40}
            assert stranger.call("GET", address, headers=headers).status_code == 401, name


def test_everyone_signed_in_sees_the_work(world: World, teammate: User, by_token: Callable[..., Api]) -> None:
    tom = by_token(teammate)
    for name, address, known in _all(world):
        if "GET" in known:
            assert tom.get(address).status_code == (409 if name in NEED_EVIDENCE else 200), name


def test_only_owner_and_staff_change_it(
    world: World, teammate: User, staff: User, owner: User, by_token: Callable[..., Api]
) -> None:
    archive = {"archived": False}
    bodies = {
        "worker-drain": {"draining": True},
        "workload-versions": {"spec": world.workload.versions.get().spec},
        "policy-versions": {"spec": {"policy": "static"}},
        **dict.fromkeys(("experiment", "workload", "policy"), archive),
    }
    tom, stella, olga = by_token(teammate), by_token(staff), by_token(owner)
    for name, address, known in _all(world):
        if name not in OWNER_ONLY | STAFF_ONLY:
            continue
        for verb in sorted(known - {"GET"}, key=lambda verb: verb == "DELETE"):  # after it there is nothing to change
            body = bodies.get(name, {})
            assert tom.call(verb, address, body).status_code == 403, (name, verb)
            if name in STAFF_ONLY:
                assert olga.call(verb, address, body).status_code == 403, (name, verb)
            assert stella.call(verb, address, body).status_code in (200, 201, 202, 204, 409), (name, verb)


def test_the_table_of_protected_views_is_complete(world: World) -> None:
    """A view that changes an existing object is listed above; views that only make new objects need no owner."""
    creating = {
        "datasets", "dataset-inspect", "workloads", "workload-preview", "policies", "experiments", "experiment-check",
        "experiment-clone", "run-fork", "profiles", "profile-calibrate", "comparisons", "endpoints",
        "studies-guided", "studies-predict", "studies-search",
    }  # fmt: skip
    changing = {name for name, _, known in _all(world) if known - {"GET"}}
    assert changing == creating | OWNER_ONLY | STAFF_ONLY


def test_a_read_only_token_changes_nothing(world: World, staff: User, by_token: Callable[..., Api]) -> None:
    reader = by_token(staff, read_only=True)
    for name, address, known in _all(world):
        for verb in ("POST", "PUT", "PATCH", "DELETE"):
            response = reader.call(verb, address, {})
            if name in PUBLIC:
                continue
            assert response.status_code == 403, (name, verb)
            assert response.json()["code"] == "read_only_token"
        if "GET" in known:
            assert reader.get(address).status_code == (409 if name in NEED_EVIDENCE else 200), name


def test_unknown_verbs_are_refused_in_the_error_shape(world: World, api: Api) -> None:
    for name, address, known in _all(world):
        for verb in {"GET", "POST", "PUT", "PATCH", "DELETE"} - known:
            response: Any = api.call(verb, address, {} if verb != "GET" else None)
            assert response.status_code == 405, (name, verb)
            assert response["Content-Type"] == "application/problem+json"
            assert response.json()["code"] == "method_not_allowed"


def test_a_session_needs_the_csrf_token_to_change(world: World, owner: User) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(owner)
    address = reverse("api:run-cancel", kwargs={"pk": world.run.pk})
    assert client.get(address).status_code == 200
    response: Any = client.post(address, {}, content_type="application/json")
    assert response.status_code == 403
    assert "CSRF" in response.json()["detail"]
    secret = "a" * 32
    client.cookies["csrftoken"] = secret
    response = client.post(address, {}, content_type="application/json", headers={"X-CSRFToken": secret})
    assert response.status_code == 202


def test_a_token_needs_no_csrf_token_and_ignores_cookies(world: World, teammate: User, by_token: Any) -> None:
    """Tom's token beside Olga's session: it is Tom who asks."""
    tom = by_token(teammate)
    tom.client.force_login(world.run.owner)
    assert tom.get("/me").json()["username"] == "tom"
    assert tom.post(f"/runs/{world.run.pk}/cancel").status_code == 403


def test_an_inactive_person_is_a_stranger(world: World, owner: User, api: Api) -> None:
    User.objects.filter(pk=owner.pk).update(is_active=False)
    assert api.get("/me").status_code == 401


@pytest.mark.parametrize("header", ["Bearer", "Bearer a b", "Basic aGk6aG8=", "Bearer hw_x", "Bearer \u00e9"])
def test_a_malformed_authorization_is_401_with_a_challenge(db: None, stranger: Api, header: str) -> None:
    response: Any = stranger.get("/me", headers={"Authorization": header.encode("utf-8").decode("latin-1")})
    assert response.status_code == 401
    assert response["WWW-Authenticate"].startswith("Bearer")
    assert response.json()["code"] == "bad_credentials"
