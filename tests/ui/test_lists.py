"""Lists: state in the URL, and a number of queries that does not grow with the rows."""

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.accounts.models import User
from controlplane.experiments.models import Experiment
from controlplane.experiments.services import submit_experiment
from controlplane.policies.services import create_policy
from controlplane.runs.models import Run
from controlplane.ui import listing
from controlplane.workloads.services import create_workload
from tests.samples import EXPERIMENT, WORKLOAD
from tests.ui.conftest import signed_in


def fill(owner: User, amount: int, first: int) -> None:
    for number in range(first, first + amount):
        submit_experiment(owner=owner, data={**EXPERIMENT, "name": f"experiment {number}"})
        create_workload(owner=owner, name=f"workload {number}", spec=WORKLOAD)
        create_policy(owner=owner, name=f"policy {number}", spec={"policy": "static"})


def queries(client: Client, path: str) -> int:
    with CaptureQueriesContext(
        connection,
    ) as captured:
        assert client.get(path).status_code == 200
    return len(captured)


@pytest.mark.parametrize("path", ["/", "/experiments/", "/runs/", "/workloads/", "/policies/", "/fleet/"])
def test_queries_do_not_grow_with_rows(path: str, owner: User, browser: Client) -> None:
    fill(owner, 2, 0)
    few = queries(browser, path)
    fill(owner, 4, 2)
    assert queries(browser, path) == few
    assert few <= 12


def test_queries_of_an_experiment_do_not_grow_with_runs(owner: User, browser: Client) -> None:
    small = submit_experiment(owner=owner, data=EXPERIMENT)
    large = submit_experiment(owner=owner, data={**EXPERIMENT, "name": "large", "repeats": 9})
    assert queries(browser, f"/experiments/{large.pk}/") == queries(browser, f"/experiments/{small.pk}/")


def test_filters_and_search_are_in_the_url(owner: User, teammate: User, browser: Client) -> None:
    fill(owner, 2, 0)
    submit_experiment(owner=teammate, data={**EXPERIMENT, "name": "of tom"})
    Experiment.objects.filter(name="experiment 0").update(status="decided")

    def names(path: str) -> list[str]:
        return [row.name for row in browser.get(path).context["page"].rows]

    assert names("/experiments/?status=decided") == ["experiment 0"]
    assert names("/experiments/?q=TOM") == ["of tom"]
    assert names("/experiments/?owner=me&status=queued") == ["experiment 1"]
    assert names("/experiments/?status=nonsense&page=abc") == ["of tom", "experiment 1", "experiment 0"]


def test_an_empty_answer_says_why_and_what_next(browser: Client) -> None:
    assert b"No experiments yet" in browser.get("/experiments/").content
    body = browser.get("/experiments/?q=zzz").content
    assert b"No experiment matches these filters" in body and b"Clear filters" in body


def test_pages_follow_each_other(owner: User, browser: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "PAGE_ROWS", 3)
    fill(owner, 2, 0)
    first = browser.get("/runs/?state=queued")
    assert len(first.context["page"].rows) == 3
    assert first.context["page"].earlier == "?state=queued&page=2"
    second = browser.get("/runs/?state=queued&page=2")
    seen = {row.pk for row in [*first.context["page"].rows, *second.context["page"].rows]}
    assert len(seen) == 6 and second.context["page"].later == "?state=queued"


def test_filters_of_runs(owner: User, teammate: User) -> None:
    fill(owner, 1, 0)
    run = Run.objects.order_by("place")[0]
    Run.objects.filter(pk=run.pk).update(state="failed", reason="out of memory")
    client = signed_in(teammate)
    rows: Any = client.get("/runs/?state=bad").context["page"].rows
    assert [row.pk for row in rows] == [run.pk]
    assert b"out of memory" in client.get("/runs/?state=bad").content
    assert len(client.get("/runs/?state=open").context["page"].rows) == 3
    assert len(client.get("/runs/?owner=me").context["page"].rows) == 0
