"""The REST client: what it retries, what it never does."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from headway.client import RETRIES, Client, RefusedError, UnreachableError
from headway.config import Connection, connection, save
from headway.follow import View, follow
from scheduler_core.types.errors import InputError

SERVER = Connection("http://headway.test", "hw_secret")


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: Any) -> None:
    monkeypatch.setattr("headway.client.time.sleep", lambda seconds: None)


def _client(answers: list[Any]) -> tuple[Client, list[httpx.Request]]:
    """A client whose server gives ``answers`` in turn; an exception is a broken connection."""
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        given = answers[min(len(seen), len(answers)) - 1]
        if isinstance(given, Exception):
            raise given
        return given  # type: ignore[no-any-return]

    return Client(SERVER, transport=httpx.MockTransport(answer)), seen


def test_a_change_is_retried_with_the_same_key_and_body() -> None:
    client, seen = _client([httpx.ConnectError("gone"), httpx.Response(503), httpx.Response(201, json={"id": "x"})])
    assert client.post("/experiments", {"name": "n"}) == {"id": "x"}
    assert len(seen) == 3
    assert len({request.headers["Idempotency-Key"] for request in seen}) == 1
    assert len({request.content for request in seen}) == 1


def test_an_upload_is_sent_whole_again(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(b"rows")
    client, seen = _client([httpx.ReadError("cut"), httpx.Response(201, json={})])
    client.upload("/datasets", path, {"name": "n"})
    assert all(b"rows" in request.read() for request in seen)
    assert len(seen) == 2


def test_two_changes_have_two_keys() -> None:
    client, seen = _client([httpx.Response(200, json={})])
    client.post("/a")
    client.post("/a")
    assert seen[0].headers["Idempotency-Key"] != seen[1].headers["Idempotency-Key"]


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "invalid_input"), (409, "conflict"), (429, "quota_exceeded"), (401, ""), (500, "internal")],
)
def test_a_refusal_that_stays_is_not_retried(status: int, code: str) -> None:
    client, seen = _client([httpx.Response(status, json={"code": code, "detail": "no"})])
    with pytest.raises(RefusedError, match="no"):
        client.post("/experiments")
    assert len(seen) == 1


def test_a_key_in_flight_is_waited_for() -> None:
    client, seen = _client([httpx.Response(409, json={"code": "in_flight"}), httpx.Response(201, json={})])
    client.post("/experiments")
    assert len(seen) == 2


def test_no_answer_is_given_up_after_a_few_tries() -> None:
    client, seen = _client([httpx.ConnectTimeout("slow")])
    with pytest.raises(UnreachableError, match=r"headway\.test"):
        client.get("/me")
    assert len(seen) == RETRIES + 1


def test_an_answer_that_is_not_headways_is_named() -> None:
    client, _ = _client([httpx.Response(404, text="<html>nginx", headers={"Server": "nginx"})])
    with pytest.raises(RefusedError, match=r"404 and no Headway document \(server: nginx\)"):
        client.get("/me")


def test_the_token_never_goes_to_another_server() -> None:
    """An answer may name an address anywhere; only its path is followed."""
    rows = {"results": [{"id": 1}], "next": "http://evil.test/api/v1/runs?cursor=c", "previous": None}
    client, seen = _client([httpx.Response(200, json=rows), httpx.Response(200, json={**rows, "next": None})])
    assert len(list(client.pages("/runs", at_most=10))) == 2
    assert {request.url.host for request in seen} == {"headway.test"}


def test_options_win_over_environment_and_that_over_the_file(monkeypatch: Any) -> None:
    assert connection().url == "http://127.0.0.1:8000"
    save(Connection("http://file", "f"))
    assert connection() == Connection("http://file", "f")
    monkeypatch.setenv("HEADWAY_URL", "http://env/")
    assert connection() == Connection("http://env", "f")
    assert connection(url="http://option", token="o") == Connection("http://option", "o")


def test_a_broken_config_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config" / "headway" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text("url = ")
    with pytest.raises(InputError, match=r"config\.toml"):
        connection()


def _experiment(status: str, states: list[str]) -> dict[str, Any]:
    runs = [
        {
            "state": state,
            "started_at": None if state == "queued" else "2026-01-01T00:00:00+00:00",
            "finished_at": "2026-01-01T00:00:10+00:00" if state == "succeeded" else None,
            "eta_s": 4.0 if state == "running" else None,
        }
        for state in states
    ]
    return {"id": "exp_1", "status": status, "runs": runs}


def test_expected_time_comes_from_runs_that_ended() -> None:
    """One run took 10 s, one is running with 4 s to go, two wait: 4 + 2 x 10 = 24 s."""
    view = View(_experiment("running", ["succeeded", "running", "queued", "queued"]))
    assert (view.runs_ended, view.eta_s) == (1, 24.0)
    assert View(_experiment("queued", ["queued"])).eta_s is None


def test_following_outlives_a_restart_of_the_server(monkeypatch: Any) -> None:
    monkeypatch.setattr("headway.client.RETRIES", 0)
    answers = [
        httpx.Response(200, json=_experiment("running", ["running"])),
        httpx.ConnectError("restarting"),
        httpx.Response(200, json=_experiment("decided", ["succeeded"])),
    ]
    client, _ = _client(answers)
    views = list(follow(client, "exp_1", sleep=lambda seconds: None))
    assert [(view.ended, view.silent_s > 0) for view in views] == [(False, False), (False, True), (True, False)]
