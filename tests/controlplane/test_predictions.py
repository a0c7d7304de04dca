"""Predictions on a server: written down from the model before anything is measured, and never changed."""

from typing import Any

import pytest
from django.test import Client
from django.utils.dateparse import parse_datetime

from controlplane.accounts.models import User
from controlplane.experiments.models import Experiment
from controlplane.experiments.services import decide_if_finished
from controlplane.fleet.services import upload_profile
from controlplane.studies.exports import study_report
from controlplane.studies.models import Study
from controlplane.studies.selectors import prediction_result
from controlplane.studies.services import advance_study, start_prediction
from scheduler_core.spec.profiles import CPU_SMALL
from scheduler_core.types.errors import InputError
from tests.controlplane.test_load_sweeps import SWEEP
from tests.controlplane.test_load_sweeps import _end as end_sweep

PROFILE = CPU_SMALL.model_copy(update={"name": "mine", "kind": "measured", "held_out_bias_share": 0.02})
ASKED: dict[str, Any] = {
    "profile": "mine",
    "experiment": {
        **SWEEP, "target": {"server": {"launch": "small"}},
        "arms": {
            "baseline": {"policy": "vllm_v1", "batch": {"token_budget": 2048}},
            "chunked": {"policy": "vllm_v1", "batch": {"token_budget": 256}},
        },
    },
}  # fmt: skip


@pytest.fixture
def study(owner: User) -> Study:
    upload_profile(owner=owner, data=PROFILE.canonical())
    return start_prediction(owner=owner, data=ASKED)


def stage(study: Study, number: int) -> Experiment:
    return study.stages.get(number=number).experiment


def end(study: Study, number: int, carries: dict[str, float]) -> None:
    experiment = stage(study, number)
    end_sweep(experiment, carries)
    assert decide_if_finished(experiment.pk) is not None
    advance_study(study)
    study.refresh_from_db()


def test_the_measurement_exists_only_after_the_prediction_is_written_down(study: Study) -> None:
    model = stage(study, 0)
    assert model.spec["target"]["modelled"]["profile"] == "mine" and study.stages.count() == 1
    assert prediction_result(study) is None
    end(study, 0, {"baseline": 4, "chunked": 6})
    written = prediction_result(study)
    assert written is not None and written.outcome is None
    assert written.prediction.winner == "chunked" and written.prediction.profile_digest == PROFILE.digest()
    measured = stage(study, 1)
    at = parse_datetime(written.prediction.written_at)
    assert at is not None and at <= measured.created_at
    assert measured.spec["target"]["server"]["launch"] == "small" and measured.status == "queued"
    assert study.status == Study.Status.RUNNING


def test_it_is_never_changed_and_what_came_of_it_stands_beside_it(study: Study, owner: User) -> None:
    """Predicted 5 and 6 as in `test_load_sweeps`. Measured: at 8 the baseline (carries 4.1) meets 80.5 %, so 95 % lies
    at 4 + 4 x 0.05 / 0.195 = 5.03, the candidate's at 4 + 4 x 0.05 / 0.095 = 6.11; both within 4 % and noise.
    """
    end(study, 0, {"baseline": 4, "chunked": 6})
    before = study.result
    assert before is not None
    advance_study(study)
    study.refresh_from_db()
    assert study.result == before
    end(study, 1, {"baseline": 4.1, "chunked": 6.1})
    found = prediction_result(study)
    assert found is not None and found.outcome is not None
    assert study.result is not None and study.result["prediction"] == before["prediction"]
    assert (study.status, found.outcome.winner) == (Study.Status.ENDED, "confirmed")
    assert all(arm.held for arm in found.outcome.arms)
    assert study.reason.startswith("confirmed: chunked carries most, as measured; baseline predicted 5 [")
    assert "Predicted at" in study_report(study)
    browser = Client()
    browser.force_login(owner)
    page = browser.get(f"/studies/{study.pk}/").content.decode()
    assert "before anything was measured" in page and "Confirmed" in page and page.count(">meet<") == 2


def test_a_measurement_of_the_other_winner_refutes(study: Study) -> None:
    end(study, 0, {"baseline": 4, "chunked": 6})
    end(study, 1, {"baseline": 6, "chunked": 4})
    assert study.reason.startswith("refuted: baseline carries most, as measured")


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"experiment": {**ASKED["experiment"], "target": {"modelled": {}}}}, "experiment"),
        (
            {"experiment": {**ASKED["experiment"], "target": {"server": {"endpoint": "gone"}}}},
            "experiment.target.server",
        ),
        ({"profile": "gone"}, "profile"),
        ({"experiment": None}, "experiment"),
    ],
)
def test_mistakes_are_named_where_they_stand(owner: User, change: Any, where: str) -> None:
    with pytest.raises(InputError) as refused:
        start_prediction(owner=owner, data={**ASKED, "profile": "auto", **change})
    assert refused.value.problems[0].where.startswith(where)
    assert not Study.objects.exists()
