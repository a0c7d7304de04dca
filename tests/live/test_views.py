"""Polling and back-fill, and series reduced without losing a spike or a gap."""

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from controlplane.live.protocol import BATCH_SAMPLES
from controlplane.live.series import reduce
from controlplane.runs.models import Run
from tests.live.conftest import store


def test_polling_gives_what_the_socket_gives(browser: Client, run: Run) -> None:
    store(run, 1, 5)
    first = browser.get(f"/live/runs/{run.pk}/").json()
    assert (first["mode"], first["last"], first["latest"], first["catching_up"]) == ("snapshot", 5, 5, False)
    later = browser.get(f"/live/runs/{run.pk}/?attempt=1&after=3").json()
    assert (later["mode"], [item["seq"] for item in later["samples"]]) == ("delta", [4, 5])


def test_a_long_log_comes_in_batches_without_gap_or_repeat(browser: Client, run: Run) -> None:
    total = 2 * BATCH_SAMPLES + 7
    for start in range(1, total + 1, 100):
        store(run, start, min(start + 99, total))
    seen: list[int] = []
    while True:
        answer = browser.get(f"/live/runs/{run.pk}/?attempt=1&after={len(seen)}").json()
        seen += [item["seq"] for item in answer["samples"]]
        if not answer["catching_up"]:
            break
    assert seen == list(range(1, total + 1))


def test_an_experiment_and_its_progress(browser: Client, ada: Any) -> None:
    from controlplane.experiments.models import Arm, ArmRun, Experiment
    from controlplane.workloads.models import ArrivalPlan

    plan = ArrivalPlan.objects.create(digest="d", requests=1, prompt_tokens=1, output_tokens=1, span_s=1)
    made = Experiment.objects.create(owner=ada, name="e", spec={}, digest="d", plan=plan)
    arm = Arm.objects.create(experiment=made, name="a", position=0, policy={})
    for repeat, (state, done) in enumerate([("succeeded", 100), ("running", 50), ("queued", 0), ("failed", 3)]):
        run = Run.objects.create(owner=ada, title="t", job={}, state=state, done=done, total=100)
        ArmRun.objects.create(arm=arm, repeat=repeat, run=run)
    answer = browser.get(f"/live/experiments/{made.pk}/").json()
    assert (answer["runs_ended"], answer["runs_total"], answer["done_share"]) == (2, 4, (1 + 0.5 + 0 + 1) / 4)
    assert [row["state"] for row in answer["runs"]] == ["succeeded", "running", "queued", "failed"]
    with CaptureQueriesContext(connection) as captured:
        browser.get(f"/live/experiments/{made.pk}/")
    assert len(captured) <= 4


@pytest.mark.parametrize(
    "path",
    ["runs/{}/?after=-1", "runs/{}/?after=x", "runs/{}/?attempt=99999999999", "runs/{}/series/?width=1e9",
     "runs/{}/series/?from=soon", "runs/{}/series/?keys=waiting,secrets"],
)  # fmt: skip
def test_nonsense_is_refused_in_words(path: str, browser: Client, run: Run) -> None:
    answer = browser.get(f"/live/{path.format(run.pk)}")
    assert answer.status_code == 400 and answer["Content-Type"] == "text/plain"


def test_strangers_and_unknown_ids(browser: Client, run: Run) -> None:
    for path in (f"/live/runs/{run.pk}/", f"/live/runs/{run.pk}/series/", "/live/experiments/exp_2222/"):
        assert Client().get(path).status_code == 302
        assert browser.post(path).status_code == 405
    for path in ("/live/runs/run_2222/", "/live/runs/run_2222/series/", "/live/experiments/exp_2222/"):
        assert browser.get(path).status_code == 404


def test_a_series_within_a_range(browser: Client, run: Run) -> None:
    store(run, 1, 50)
    answer = browser.get(f"/live/runs/{run.pk}/series/?from=2&to=3&keys=waiting").json()
    assert (answer["n"], answer["bucketed"], answer["t_s"]) == (6, False, [2.0, 2.2, 2.4, 2.6, 2.8, 3.0])
    assert answer["series"] == {"waiting": [n % 7 for n in range(10, 16)]}


def rows(values: list[float | None], step: float = 0.2) -> list[dict[str, Any]]:
    return [{"seq": n, "t_s": n * step, "v": value} for n, value in enumerate(values, 1)]


def test_one_spike_among_a_hundred_thousand_is_kept() -> None:
    values: list[float | None] = [1.0] * 100_000
    values[77_777] = 900.0
    answer = reduce(rows(values), ("v",), 500)
    assert answer["bucketed"] and answer["n"] == 100_000 and len(answer["t_s"]) <= 2 * 500 + 2
    assert max(answer["series"]["v"]) == 900.0
    assert answer["last_seq"] == 100_000


def test_a_stretch_without_values_stays_a_gap() -> None:
    values = [1.0] * 1000 + [None] * 1000 + [2.0] * 1000
    answer = reduce(rows(values), ("v",), 300)
    inside = [v for t, v in zip(answer["t_s"], answer["series"]["v"], strict=True) if 205 < t < 395]
    assert inside and set(inside) == {None}


@given(
    values=st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), min_size=1, max_size=300),
    width=st.integers(1, 40),
)
def test_reduction_keeps_extremes_ends_and_order(values: list[float | None], width: int) -> None:
    answer = reduce(rows(values), ("v",), width)
    kept = [value for value in answer["series"]["v"] if value is not None]
    present = [value for value in values if value is not None]
    assert bool(kept) == bool(present)
    if present:
        assert (min(kept), max(kept)) == (min(present), max(present))
    assert answer["t_s"] == sorted(answer["t_s"])
    assert (answer["t_s"][0], answer["t_s"][-1]) == (0.2, len(values) * 0.2)
    assert answer["series"]["v"][0] == values[0] and answer["series"]["v"][-1] == values[-1]
    assert len(answer["t_s"]) <= 2 * width + 2
    assert answer == reduce(rows(values), ("v",), width)
