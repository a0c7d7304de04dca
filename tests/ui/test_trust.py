"""The part of a run's page that sets it beside the model."""

import re
from typing import Any

from django.template.loader import render_to_string

from scheduler_core.evidence.schema import Figure
from tests.cli.test_trust import BESIDE, PREDICTED


def shown(**summary: Any) -> str:
    metrics = {"ttft_mean_ms": Figure(value=28, unit="ms", n=40).canonical()}
    page = render_to_string("parts/trust.html", {"summary": summary, "metrics": metrics})
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def test_kernels_stand_beside_the_model() -> None:
    page = shown(against_model=BESIDE.canonical())
    assert "profile mine" in page
    assert "Decisions are the same for 7 steps, then part: the kernels at 40 ms computed 1 request" in page
    assert "the model had none" in page
    assert "8 to 15 100 800 740" in page
    assert "extrapolated" in page


def test_predictions_have_bands_and_say_when_they_are_extrapolated() -> None:
    page = shown(predicted=PREDICTED.canonical())
    assert "28 ms 25 to 32.2" in page
    assert "Extrapolated." in page
    assert "up to 4,096" in page
    assert shown(predicted=None, against_model=None).strip() == ""
