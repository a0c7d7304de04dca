"""Endpoints: secrets that never come out, and requests that go nowhere they must not."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.db import connection

from controlplane.accounts.models import User
from controlplane.endpoints import services
from controlplane.endpoints.access import access_to, closed, reach
from controlplane.endpoints.models import Endpoint
from controlplane.endpoints.outbound import NoAnswerError, Outbound
from controlplane.endpoints.sealing import seal, unseal
from gpu_runner.server.mock.behaviour import Behaviour
from gpu_runner.server.mock.process import mock_server
from scheduler_core.spec.addresses import Reach
from scheduler_core.spec.server import Deployment
from scheduler_core.types.errors import InputError

SECRET = "sk-canary-0123456789"


@pytest.fixture
def olga(db: None) -> User:
    return User.objects.create_user("olga", password="a long password")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with mock_server(Behaviour(api_key=SECRET, model="m1")) as url:
        yield url


def test_a_secret_is_encrypted_at_rest_and_opens_again(olga: User) -> None:
    endpoint = services.register(owner=olga, name="lab", url="http://127.0.0.1:9/", secret=SECRET)
    with connection.cursor() as cursor:
        cursor.execute("SELECT * FROM endpoints_endpoint")
        assert SECRET not in repr(cursor.fetchall())
    assert unseal(endpoint.sealed_secret) == SECRET
    assert seal(SECRET) != seal(SECRET)  # nobody sees that two endpoints share one
    assert endpoint.url == "http://127.0.0.1:9"


def test_another_key_of_the_installation_opens_nothing(olga: User, settings: Any) -> None:
    endpoint = services.register(owner=olga, name="lab", url="http://127.0.0.1:9", secret=SECRET)
    settings.SECRET_KEY = "another " * 8
    with pytest.raises(InputError, match="SECRET_KEY has changed since it was stored; enter it again"):
        access_to(Deployment(endpoint=endpoint.name))


def test_a_new_address_does_not_get_the_old_secret(olga: User) -> None:
    endpoint = services.register(owner=olga, name="lab", url="http://127.0.0.1:9", secret=SECRET)
    services.change(endpoint=endpoint, user=olga, url="http://elsewhere:80")
    assert endpoint.sealed_secret == ""
    services.change(endpoint=endpoint, user=olga, url="http://third:80", secret="new")
    assert unseal(endpoint.sealed_secret) == "new"


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({"name": "", "url": "http://x"}, "name"),
        ({"name": "lab", "url": "x:80"}, "url"),
        ({"name": "lab", "url": "http://u:p@x"}, "url"),
        ({"name": "lab", "url": "http://x", "secret": "a\nb: c"}, "secret"),
        ({"name": "taken", "url": "http://x"}, "name"),
    ],
)
def test_what_cannot_be_an_endpoint_is_refused_by_field(olga: User, values: Any, where: str) -> None:
    services.register(owner=olga, name="taken", url="http://127.0.0.1:9")
    with pytest.raises(InputError) as refused:
        services.register(owner=olga, **values)
    assert [item.where for item in refused.value.problems] == [where]


def test_only_its_owner_and_staff_use_its_secret(olga: User, server: str) -> None:
    tom = User.objects.create_user("tom", password="a long password")
    endpoint = services.register(owner=olga, name="lab", url=server, secret=SECRET)
    for act in (services.check, services.try_out, services.remove):
        with pytest.raises(PermissionDenied):
            act(endpoint=endpoint, user=tom)


def test_health_says_which_models_answer(olga: User, server: str) -> None:
    good = services.check(endpoint=services.register(owner=olga, name="a", url=server, secret=SECRET), user=olga)
    assert good.health["ok"] and good.health["models"] == ["m1"]
    wrong = services.check(endpoint=services.register(owner=olga, name="b", url=server, secret="no"), user=olga)
    assert wrong.health == {"ok": False, "sentence": "answered with status 401", "models": []}
    dead = services.check(endpoint=services.register(owner=olga, name="c", url="http://127.0.0.1:9"), user=olga)
    assert not dead.health["ok"] and "cannot connect to 127.0.0.1:9" in dead.health["sentence"]


def test_trying_it_shows_the_raw_exchange_and_masks_the_secret(olga: User, server: str) -> None:
    endpoint = services.register(owner=olga, name="lab", url=server, secret=SECRET)
    shown = services.try_out(endpoint=services.check(endpoint=endpoint, user=olga), user=olga)
    assert shown.problem == "" and shown.first_byte_ms is not None
    assert "POST" in shown.request and "authorization: Bearer ********" in shown.request
    assert shown.answer.startswith("200\n") and "data: {" in shown.answer and "data: [DONE]" in shown.answer
    assert SECRET not in json.dumps([shown.request, shown.answer])


# --- where requests may go ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254", "http://[fd00:ec2::254]", "http://[::ffff:169.254.169.254]", "http://0.0.0.0:80",
        "http://[fe80::1]", "http://224.0.0.1", "http://2852039166", "http://0xA9FEA9FE",
    ],
)  # fmt: skip
def test_metadata_services_and_odd_addresses_are_never_reached(url: str) -> None:
    with pytest.raises(NoAnswerError, match=r"not model servers|no server's address|has no address"):
        Outbound(url, Reach()).get("/")


def test_this_installation_itself_is_no_model_server(settings: Any) -> None:
    settings.REDIS_URL = "redis://:x@127.0.0.1:6390"
    settings.WEB_PORT = 8123
    assert {("127.0.0.1", 6390), ("127.0.0.1", 8123), ("::1", 8123)} <= set(closed())
    for port in (6390, 8123):
        with pytest.raises(NoAnswerError, match="which is this installation itself"):
            Outbound(f"http://localhost:{port}", reach()).get("/")


def test_an_allow_list_of_names_and_networks(settings: Any, server: str) -> None:
    settings.ENDPOINT_HOSTS = ["10.0.0.0/8", "gpu.example"]
    with pytest.raises(NoAnswerError, match="not among the hosts an administrator allowed"):
        Outbound(server, reach()).get("/v1/models")
    settings.ENDPOINT_HOSTS = ["127.0.0.1"]
    assert Outbound(server, reach(), {"authorization": f"Bearer {SECRET}"}).get("/v1/models").status == 200


def test_the_address_is_judged_when_connecting_not_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is allowed and resolves to a metadata service at the moment of connecting."""
    import socket

    answer = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer)
    with pytest.raises(NoAnswerError, match="where clouds keep credentials"):
        Outbound("http://gpu.example", Reach(["gpu.example"])).get("/")


def test_redirects_are_shown_not_followed_and_answers_are_capped(server: str) -> None:
    found = Outbound(server, Reach(), {"authorization": f"Bearer {SECRET}"}).get("/nowhere")
    assert found.status == 404


# --- what a run is given --------------------------------------------------------------------------------------------


def test_a_run_gets_address_secret_and_limits(olga: User, settings: Any) -> None:
    settings.ENDPOINT_HOSTS = ["127.0.0.1"]
    services.register(owner=olga, name="lab", url="http://127.0.0.1:9", secret=SECRET, verify_tls=False)
    access = access_to(Deployment(endpoint="lab"))
    assert access.headers == {"authorization": f"Bearer {SECRET}"} and not access.verify_tls
    assert access.allowed == ("127.0.0.1",) and access.closed
    plain = access_to(Deployment(url="http://127.0.0.1:7"))
    assert plain.url == "http://127.0.0.1:7" and not plain.headers and plain.closed
    Endpoint.objects.all().delete()
    with pytest.raises(InputError, match="there is no endpoint 'lab' any more"):
        access_to(Deployment(endpoint="lab"))


def test_launch_templates_come_from_a_file_of_the_administrator_alone(settings: Any, tmp_path: Path) -> None:
    settings.LAUNCH_FILE = str(tmp_path / "launch.yaml")
    with pytest.raises(InputError, match="this worker has no launch template 'a'; it has none"):
        access_to(Deployment(launch="a"))
    (tmp_path / "launch.yaml").write_text("templates: {a: {server: vllm, command: [python, -m, x, --port, '{port}']}}")
    launch = access_to(Deployment(launch="a")).launch
    assert launch is not None and launch.command[0] == "python"
    (tmp_path / "launch.yaml").write_text("templates: {a: {server: vllm, command: [python]}}")
    with pytest.raises(InputError, match="one argument must contain"):
        access_to(Deployment(launch="a"))


def test_an_experiment_that_names_an_unknown_endpoint_is_refused_by_its_place(olga: User) -> None:
    from controlplane.experiments.drafts import read_draft
    from tests.samples import EXPERIMENT

    arms = {"a": {"policy": "as_served"}, "b": {"policy": "as_served"}}
    target = {"server": {"arms": {"a": {"endpoint": "lab"}, "b": {"url": "http://127.0.0.1:9"}}}}
    with pytest.raises(InputError) as refused:
        read_draft({**EXPERIMENT, "arms": arms, "baseline": "a", "target": target}, user=olga)
    assert [item.where for item in refused.value.problems] == ["target.server.arms.a.endpoint"]
    services.register(owner=olga, name="lab", url="http://127.0.0.1:9", secret=SECRET)
    draft = read_draft({**EXPERIMENT, "arms": arms, "baseline": "a", "target": target}, user=olga)
    assert draft.device_kind == "cpu"
    assert SECRET not in json.dumps(draft.spec.canonical())
