"""Single requests of a run, over REST and on their page: the slowest, and where the time of one went."""

from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client

from controlplane.evidence import exports
from controlplane.evidence.models import Artifact, Segment
from controlplane.runs.models import Run
from controlplane.workloads.selectors import copy_file
from scheduler_core.evidence.path.slowest import MEASURES
from scheduler_core.evidence.tables.tables import read_table
from tests.api.conftest import Api, World

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture
def page(world: World, client: Client) -> Client:
    client.force_login(world.run.owner)
    return client


@pytest.mark.parametrize("by", MEASURES)
def test_the_slowest_come_first(world: World, api: Api, folder: Path, by: str) -> None:
    rows: Any = api.get(f"/runs/{world.run.pk}/requests?by={by}").json()
    values = read_table(folder / "requests.parquet", [by]).column(by).to_pylist()
    assert [row[by] for row in rows] == sorted((value for value in values if value is not None), reverse=True)[:20]


def test_the_path_of_each_is_as_long_as_it_took(world: World, api: Api) -> None:
    for row in api.get(f"/runs/{world.run.pk}/requests").json()[:3]:
        path: Any = api.get(f"/runs/{world.run.pk}/requests/{row['request']}/path").json()
        assert path["elapsed_ms"] == pytest.approx(row["e2e_ms"])
        assert sum(part["exposed_ms"] for part in path["parts"]) == pytest.approx(row["e2e_ms"])
        assert all(part["would_shorten_ms"] <= part["exposed_ms"] for part in path["parts"])
        queue = [part["exposed_ms"] for part in path["parts"] if part["kind"] == "queue"]
        assert sum(queue) == pytest.approx(row["queue_wait_ms"])


def test_what_cannot_be_answered_is_said(world: World, api: Api) -> None:
    address = f"/runs/{world.run.pk}/requests"
    unknown: Any = api.get(f"{address}/777/path")
    assert unknown.status_code == 409
    assert "request 777 has no token" in unknown.content.decode()
    wrong: Any = api.get(f"{address}?by=mood")
    assert wrong.status_code == 400
    assert "e2e_ms" in wrong.content.decode()
    Segment.objects.all().delete()
    Artifact.objects.all().delete()
    for missing, word in (("", "no requests table"), ("/0/path", "no records")):
        response: Any = api.get(address + missing)
        assert (response.status_code, word in response.json()["detail"]) == (409, True)


def test_a_server_shows_no_intervals(world: World, api: Api) -> None:
    job = Run.objects.get(pk=world.run.pk).job | {"target": {"server": {"url": "http://127.0.0.1:9"}}}
    Run.objects.filter(pk=world.run.pk).update(job=job)
    response: Any = api.get(f"/runs/{world.run.pk}/requests/0/path")
    assert response.status_code == 409
    assert "measured a server from outside" in response.json()["detail"]


def test_the_page_shows_the_slowest_and_its_path(world: World, page: Client, api: Api) -> None:
    slowest = api.get(f"/runs/{world.run.pk}/requests?by=ttft_ms").json()[0]["request"]
    text = page.get(f"/runs/{world.run.pk}/requests/?by=ttft_ms").content.decode()
    assert f"Critical path of request {slowest}" in text
    assert "Compute prefill" in text
    assert f"/runs/{world.run.pk}/requests/" in page.get(f"/runs/{world.run.pk}/").content.decode()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("777", "request 777 has no token"),
        ("-1", "is not a number of a request"),
        ("many", "is not a number"),
        ("9" * 5000, "is not a number"),
    ],
)
def test_the_page_answers_a_wrong_number_beside_the_list(world: World, page: Client, asked: str, said: str) -> None:
    text = page.get(f"/runs/{world.run.pk}/requests/?request={asked}").content.decode()
    assert said in text
    assert "The 20 slowest" in text


def test_without_evidence_the_page_says_so(world: World, page: Client) -> None:
    Artifact.objects.all().delete()
    response = page.get(f"/runs/{world.run.pk}/requests/")
    assert response.status_code == 200
    assert "has no requests table" in response.content.decode()


@pytest.fixture
def read(monkeypatch: Any) -> list[str]:
    """Names of stored files, as they are read."""
    names: list[str] = []

    def noting(stored: Any, target: Path) -> Path:
        names.append(Path(stored.name).name)
        return copy_file(stored, target)

    monkeypatch.setattr(exports, "copy_file", noting)
    return names


def test_a_second_view_reads_no_stored_file(world: World, page: Client, read: list[str]) -> None:
    address = f"/runs/{world.run.pk}/requests/"

    def main(query: str = "") -> str:
        return page.get(address + query).content.decode().partition('<main id="main"')[2]

    first = main()
    assert len(read) == Segment.objects.count() + 1 > 3
    read.clear()
    assert main() == first and "Critical path of request" in first
    main("?request=777")
    assert len(read) == Segment.objects.count()  # that these records know no such request has to be found out once
    read.clear()
    assert "request 777 has no token" in main("?request=777")
    assert read == []


def test_what_was_kept_of_other_evidence_is_not_shown(world: World, page: Client, read: list[str]) -> None:
    """A run that goes on stores more records, a retried one others: both have another digest."""
    address = f"/runs/{world.run.pk}/requests/"
    page.get(address)
    read.clear()
    last = Segment.objects.order_by("number").last()
    assert last is not None
    last.delete()
    page.get(address)
    assert len(read) == Segment.objects.count()


def test_without_a_cache_each_view_reads_anew(world: World, page: Client, read: list[str], monkeypatch: Any) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("no cache here")

    for name in ("get", "set"):
        monkeypatch.setattr(cache, name, unreachable)
    for _ in range(2):
        read.clear()
        assert "Critical path of request" in page.get(f"/runs/{world.run.pk}/requests/").content.decode()
        assert len(read) == Segment.objects.count() + 1
