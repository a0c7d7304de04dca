"""Safe retries: carried out once, answered the same."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.core.files.uploadedfile import SimpleUploadedFile
from django.utils import timezone

from controlplane.accounts.models import User
from controlplane.api.models import IdempotentAnswer
from controlplane.experiments.models import Experiment
from controlplane.policies.models import Policy
from controlplane.workloads.models import Dataset
from tests.api.conftest import TRACE, Api, World
from tests.samples import EXPERIMENT

KEY = {"Idempotency-Key": "release-42"}


def test_a_retry_gets_the_first_answer_byte_for_byte(api: Api) -> None:
    first: Any = api.post("/experiments", EXPERIMENT, headers=KEY)
    again: Any = api.post("/experiments", EXPERIMENT, headers=KEY)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content
    assert again["Location"] == first["Location"]
    assert again["Content-Type"] == first["Content-Type"]
    assert again["Idempotent-Replayed"] == "true"
    assert "Idempotent-Replayed" not in first
    assert Experiment.objects.count() == 1


def test_a_refusal_of_the_input_is_replayed_too(api: Api) -> None:
    first: Any = api.post("/experiments", {"name": "x"}, headers=KEY)
    again: Any = api.post("/experiments", {"name": "x"}, headers=KEY)
    assert first.status_code == again.status_code == 400
    assert again.content == first.content


def test_the_key_of_another_request_is_422(api: Api) -> None:
    api.post("/policies", {"name": "a", "spec": {"policy": "static"}}, headers=KEY)
    for path, body in (("/policies", {"name": "b", "spec": {"policy": "static"}}), ("/experiments", EXPERIMENT)):
        response: Any = api.post(path, body, headers=KEY)
        assert response.status_code == 422
        assert response.json()["code"] == "idempotency_key_reused"
    assert Policy.objects.count() == 1


def test_a_key_in_flight_is_409_and_asks_to_wait(api: Api, owner: User) -> None:
    IdempotentAnswer.objects.create(user=owner, key="release-42", request_digest="0" * 64)
    response: Any = api.post("/experiments", EXPERIMENT, headers=KEY)
    assert response.status_code == 409
    assert response.json()["code"] == "in_flight"
    assert response["Retry-After"] == "1"
    assert Experiment.objects.count() == 0


def test_an_answer_that_a_retry_may_better_is_not_kept(world: World, api: Api, settings: Any) -> None:
    """429 now, 201 with the same key once there is room again."""
    settings.RUN_QUEUE_LIMIT = 0
    assert api.post("/experiments", EXPERIMENT, headers=KEY).status_code == 429
    settings.RUN_QUEUE_LIMIT = 100
    assert api.post("/experiments", EXPERIMENT, headers=KEY).status_code == 201


def test_a_fault_gives_the_key_back(api: Api, monkeypatch: Any) -> None:
    def broken(**_: Any) -> None:
        raise RuntimeError("boom")

    with monkeypatch.context() as patch:
        patch.setattr("controlplane.experiments.services.submit_experiment", broken)
        assert api.post("/experiments", EXPERIMENT, headers=KEY).status_code == 500
    assert api.post("/experiments", EXPERIMENT, headers=KEY).status_code == 201


def test_an_abandoned_mark_and_an_old_answer_are_given_up(api: Api, owner: User) -> None:
    row = IdempotentAnswer.objects.create(user=owner, key="release-42", request_digest="0" * 64)
    IdempotentAnswer.objects.filter(pk=row.pk).update(created_at=timezone.now() - timedelta(minutes=11))
    assert api.post("/experiments", EXPERIMENT, headers=KEY).status_code == 201
    IdempotentAnswer.objects.update(created_at=timezone.now() - timedelta(hours=25))
    assert api.post("/experiments", EXPERIMENT, headers=KEY).status_code == 201
    assert Experiment.objects.count() == 2


def test_keys_belong_to_people(api: Api, teammate: User, by_token: Callable[..., Api]) -> None:
    api.post("/experiments", EXPERIMENT, headers=KEY)
    response: Any = by_token(teammate).post("/experiments", EXPERIMENT, headers=KEY)
    assert response.status_code == 201
    assert response.json()["owner"] == "tom"


def test_an_upload_is_known_by_its_bytes_not_by_its_boundary(api: Api) -> None:
    def send(content: bytes) -> Any:
        fields = {"file": SimpleUploadedFile("t.csv", content), "format": "csv", "time_unit": "s", "name": "t"}
        return api.upload("/datasets", fields, headers=KEY)

    first, again = send(TRACE), send(TRACE)
    assert first.status_code == 201, first.content
    assert again.content == first.content
    assert Dataset.objects.count() == 1
    assert send(TRACE + b"2.0,1,1\n").status_code == 422


def test_an_unusable_key_is_400(api: Api) -> None:
    for key in ("", "a b", "x" * 201):
        response: Any = api.post("/experiments", EXPERIMENT, headers={"Idempotency-Key": key})
        assert response.json()["code"] == "bad_idempotency_key"


def test_a_refused_caller_leaves_no_mark(stranger: Api, db: None) -> None:
    assert stranger.post("/experiments", EXPERIMENT, headers=KEY).status_code == 401
    assert not IdempotentAnswer.objects.exists()
