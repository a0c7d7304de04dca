"""Judging uploads of other tools' results: answers, refusals by the person's own file names, nothing kept."""

from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile

from controlplane.experiments import measured
from controlplane.experiments.models import Experiment
from tests.api.conftest import Api
from tests.verdict.measured_files import two_arms


def _fields(folder: Path, factor: float = 0.6) -> dict[str, Any]:
    found = [(arm, path) for arm, files in two_arms(folder, factor=factor).items() for path in files]
    return {
        "arm": [arm for arm, _ in found],
        "file": [SimpleUploadedFile(path.name, path.read_bytes()) for _, path in found],
    }


def test_uploads_are_judged_and_nothing_is_kept(api: Api, tmp_path: Path, settings: Any) -> None:
    fields = {**_fields(tmp_path), "goal": '{"primary": "e2e_p95_ms"}', "name": "night run"}
    response: Any = api.upload("/comparisons", fields)
    assert response.status_code == 200, response.content
    found = response.json()
    assert (found["verdict"]["experiment"], found["verdict"]["exit_code"]) == ("night run", 0)
    assert found["text"].startswith("accept   candidate against baseline")
    assert len(found["runs"]) == 10
    assert found["verdict"]["comparisons"][0]["gates"][0]["metric"] == "e2e_p95_ms"
    assert Experiment.objects.count() == 0
    assert list(Path(settings.MEDIA_ROOT).rglob("*")) == []


@pytest.mark.parametrize(
    ("changes", "where", "word"),
    [
        ({"tool": "wrk"}, "tool", "'wrk' is none of"),
        ({"goal": "{"}, "goal", "write JSON such as"),
        ({"goal": '{"primary": "nope"}'}, "goal.primary", "ttft_p50_ms"),
        ({"baseline": "other"}, "baseline", "there is no arm 'other'"),
        ({"arm": ["a", "b"]}, "arm", "2 arms for 10 files"),
        ({"arm": ["a"] * 10}, "arms", "at least 2"),
        ({"bogus": "1"}, "bogus", "unknown key"),
    ],
)
def test_wrong_fields_are_named(api: Api, tmp_path: Path, changes: dict[str, Any], where: str, word: str) -> None:
    response: Any = api.upload("/comparisons", {**_fields(tmp_path), **changes})
    assert response.status_code == 400
    problem = response.json()["problems"][0]
    assert problem["where"] == where
    assert word in problem["message"]


def test_a_bad_row_is_told_by_the_name_it_was_uploaded_under(api: Api, tmp_path: Path) -> None:
    text = b"prompt_tokens,generation_tokens,ttft,launch_time,finish_time\n1,1,many,0,1\n"
    fields = {**_fields(tmp_path), "arm": ["a", "b"]}
    fields["file"] = [fields["file"][0], SimpleUploadedFile("mine.csv", text)]
    response: Any = api.upload("/comparisons", fields)
    assert response.status_code == 400
    assert response.json()["problems"][0]["where"] == "mine.csv line 2"
    assert "/tmp" not in response.content.decode()


def test_files_beyond_the_limit_are_refused(api: Api, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(measured, "MAX_BYTES", 1000)
    response: Any = api.upload("/comparisons", _fields(tmp_path))
    assert response.status_code == 400
    assert "at most 1000 are read" in response.json()["detail"]
