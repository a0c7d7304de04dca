"""One error shape, every problem at once, and never a traceback, whatever is sent."""

import json
from typing import Any

import pytest
from django.test import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.accounts.models import User
from tests.api.conftest import Api, World
from tests.samples import EXPERIMENT

SHAPE = {"type", "title", "status", "code", "detail", "problems", "request_id"}


def _problem(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert set(document) == SHAPE
    assert document["status"] == status
    assert document["request_id"] == response["X-Request-ID"]
    assert "Traceback" not in response.content.decode()
    return document


def test_every_problem_of_a_spec_is_named_with_its_field(api: Api) -> None:
    spec = {**EXPERIMENT, "repeets": 3, "arms": {"a": {"policy": "static", "batch": {"size": 0}}}}
    document = _problem(api.post("/experiments", spec), 400)
    assert document["code"] == "invalid_input"
    found = {item["where"]: item["message"] for item in document["problems"]}
    assert "did you mean 'repeats'?" in found["repeets"]
    assert "arms.a.batch.size" in found


def test_unknown_keys_of_an_action_are_refused(api: Api) -> None:
    document = _problem(api.post("/policies", {"name": "p", "spec": {"policy": "static"}, "sped": 1}), 400)
    assert document["problems"] == [{"where": "sped", "message": "unknown key; known: name, spec"}]


def test_a_word_that_is_none_of_some_is_told_which_there_are(api: Api) -> None:
    one = _problem(api.get("/runs?kind=arn"), 400)["problems"]
    assert one == [{"where": "kind", "message": "'arn' is none of arm, calibration, search"}]
    (some,) = _problem(api.get("/experiments?status=decided&status=over"), 400)["problems"]
    assert some["where"] == "status"
    assert some["message"].startswith("'over' is none of ")
    assert "decided" in some["message"]


def test_an_unknown_object_and_an_unknown_path_are_404(api: Api) -> None:
    _problem(api.get("/runs/run_nothere"), 404)
    _problem(api.get("/nothing/like/this"), 404)


def test_text_that_is_no_json_is_400(api: Api) -> None:
    for body in (b"{", b"[1,", b'{"a": NaN}', b"\xff\xfe", b'{"a": Infinity}', b'{"a": 1, "a": 2}'):
        response = api.client.post("/api/v1/experiments", body, content_type="application/json", headers=api.headers)
        assert _problem(response, 400)["code"] == "malformed"


def test_deep_nesting_is_400(api: Api) -> None:
    for depth in (60, 100_000):
        body = b"[" * depth + b"]" * depth
        response = api.client.post("/api/v1/experiments", body, content_type="application/json", headers=api.headers)
        assert _problem(response, 400)["code"] == "malformed"


def test_a_body_beyond_the_cap_is_413(api: Api, settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    body = b'{"name": "' + b"x" * 2000 + b'"}'
    response = api.client.post("/api/v1/experiments", body, content_type="application/json", headers=api.headers)
    assert _problem(response, 413)["code"] == "too_large"


def test_another_media_type_is_415(api: Api) -> None:
    response = api.client.post("/api/v1/policies", b"<a/>", content_type="application/xml", headers=api.headers)
    assert _problem(response, 415)["code"] == "unsupported_media_type"


def test_yaml_is_taken_as_it_was_written_and_aliases_are_not(api: Api) -> None:
    text = json.dumps(EXPERIMENT)
    response: Any = api.client.post(
        "/api/v1/experiments/check", text, content_type="application/yaml", headers=api.headers
    )
    assert response.status_code == 200, response.content
    bomb = "a: &a [1,1]\nb: [*a,*a]\n"
    response = api.client.post("/api/v1/experiments", bomb, content_type="application/yaml", headers=api.headers)
    assert "aliases" in _problem(response, 400)["detail"]


def test_a_refused_host_is_told_in_the_shape(db: None) -> None:
    response = Client(raise_request_exception=False).get("/api/v1/health", headers={"Host": "evil.example"})
    _problem(response, 400)


def test_a_fault_of_the_server_says_nothing_of_its_inside(api: Api, monkeypatch: Any) -> None:
    def broken(**_: Any) -> None:
        raise RuntimeError("secret path /etc/passwd")

    monkeypatch.setattr("controlplane.experiments.services.check_experiment", broken)
    document = _problem(api.post("/experiments/check", EXPERIMENT), 500)
    assert document["code"] == "internal"
    assert "secret" not in json.dumps(document)


def test_a_request_id_is_taken_over_when_well_formed(api: Api) -> None:
    assert api.get("/me", headers={"X-Request-ID": "trace-me-0001"})["X-Request-ID"] == "trace-me-0001"
    assert api.get("/me", headers={"X-Request-ID": "a b\tc"})["X-Request-ID"].startswith("req_")


def test_ended_runs_cannot_be_cancelled(world: World, api: Api) -> None:
    address = f"/experiments/{world.experiment.pk}/cancel"
    assert api.post(address).status_code == 202
    assert _problem(api.post(address), 409)["code"] == "conflict"


def test_a_full_queue_is_429_with_a_code_of_its_own(api: Api, settings: Any) -> None:
    settings.RUN_QUEUE_LIMIT = 3
    response: Any = api.post("/experiments", EXPERIMENT)
    assert _problem(response, 429)["code"] == "quota_exceeded"
    assert response["Retry-After"]


def test_the_rate_limit_says_when_to_come_back(api: Api, settings: Any) -> None:
    settings.API_RATES = {"all": "3/min", "change": "2/min"}
    for _ in range(3):
        assert api.get("/me").status_code == 200
    response: Any = api.get("/me")
    assert _problem(response, 429)["code"] == "too_many_requests"
    assert 0 < int(response["Retry-After"]) <= 60


def test_the_api_answers_while_the_cache_is_gone(api: Api, monkeypatch: Any) -> None:
    def gone(*_: Any, **__: Any) -> None:
        raise ConnectionError("no cache")

    monkeypatch.setattr("django.core.cache.cache.get", gone)
    assert api.get("/me").status_code == 200


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "limit=x", "limit=-1", "limit=1e3", "state=bogus"])
def test_a_bad_query_is_400(api: Api, query: str) -> None:
    document = _problem(api.get(f"/runs?{query}"), 400)
    assert document["code"] == "invalid_input"


@pytest.mark.parametrize("path", ["/runs", "/experiments", "/policies", "/workloads", "/datasets", "/profiles"])
def test_a_misspelt_filter_of_a_list_is_refused(api: Api, path: str) -> None:
    """It must not give the whole list, as if nothing had been asked for."""
    (problem,) = _problem(api.get(f"{path}?limit=5&sate=done"), 400)["problems"]
    assert problem["where"] == "sate"
    assert problem["message"].startswith("unknown key; known: ")
    assert problem["message"].endswith("limit, cursor")


def test_a_nul_in_an_address_is_404(api: Api) -> None:
    _problem(api.get("/runs?owner=%00"), 404)
    _problem(api.get("/runs/a%00b"), 404)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
PATHS = st.sampled_from(
    [
        "/experiments", "/experiments/check", "/workloads", "/workloads/preview", "/policies", "/profiles",
        "/profiles/calibrate",
    ]
)  # fmt: skip


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        for key, item in value.items():
            found += _paths(item, (*path, key))
    return found


def _with(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    return {**value, path[0]: _with(value[path[0]], path[1:], new)}


MUTATED = st.builds(lambda path, new: _with(EXPERIMENT, path, new), st.sampled_from(_paths(EXPERIMENT)), JSON)
QUIET = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@QUIET
@given(path=PATHS, body=JSON)
def test_no_json_whatever_ends_in_a_fault(api: Api, owner: User, path: str, body: Any) -> None:
    response = api.post(path, body if body is not None else [])
    assert response.status_code in (200, 201, 400, 429), response.content
    if response.status_code == 400:
        _problem(response, 400)


@QUIET
@given(body=MUTATED)
def test_no_change_of_a_good_experiment_ends_in_a_fault(api: Api, body: Any) -> None:
    response = api.post("/experiments/check", body)
    assert response.status_code in (200, 400), response.content
    if response.status_code == 400:
        assert _problem(response, 400)["problems"]
