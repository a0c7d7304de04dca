"""Studies in the browser: both forms submit what they start with, and their pages show what came of them."""

import re

import pytest
from django.test import Client

from controlplane.runs.models import Run
from controlplane.studies.models import Study
from tests.ui.conftest import World


def fields(page: str) -> dict[str, str]:
    """What a browser would post back of a form's inputs, text areas and selects, as drawn."""
    found = {
        match["name"]: match["value"] or ""
        for match in re.finditer(r'<input[^>]*?name="(?P<name>[^"]+)"[^>]*?value="(?P<value>[^"]*)"', page)
    }
    found |= dict(re.findall(r'<textarea[^>]*?name="([^"]+)"[^>]*>\n?([^<]*)</textarea>', page))
    for match in re.finditer(r'<select[^>]*?name="(?P<name>[^"]+)".*?</select>', page, re.DOTALL):
        chosen = re.search(r'<option value="([^"]*)"[^>]*?selected', match[0])
        found[match["name"]] = chosen[1] if chosen else ""
    return found


@pytest.mark.parametrize("kind", ["guided", "search"])
def test_a_form_submits_what_it_starts_with(kind: str, browser: Client, world: World) -> None:
    address = f"/studies/new/{kind}/"
    data = fields(browser.get(address).content.decode())
    name = next(key for key in data if key.endswith("name") and "." not in key.removeprefix("f."))
    answer = browser.post(address, {**data, name: "from the form", "do": "save"})
    assert answer.status_code == 302, re.findall(r"<li>.*?</li>", answer.content.decode())
    study = Study.objects.get(name="from the form")
    assert (study.kind, study.status) == (kind, "running")
    page = browser.get(answer["Location"]).content.decode()
    assert "from the form" in page
    if kind == "search":
        assert study.run is not None and study.run.kind == Run.Kind.SEARCH
        assert study.spec["space"]["batch.size"]["values"] == ["8", "16", "32"]
        assert study.spec["confirm"]["target"]["torch"]["model"] == "demo-s"
    else:
        assert "step selection" in page


def test_a_prediction_is_submitted_from_its_form_and_shown(browser: Client, world: World) -> None:
    address = "/studies/new/predict/"
    data = fields(browser.get(address).content.decode())
    wanted = {"name": "from the form", "launch": "small"}
    given = {key: wanted[last] for key in data if (last := key.rpartition(".")[2]) in wanted and "policy" not in key}
    answer = browser.post(address, {**data, **given, "do": "save"})
    assert answer.status_code == 302, re.findall(r"<li>.*?</li>", answer.content.decode())
    study = Study.objects.get(name="from the form")
    assert (study.kind, study.spec["experiment"]["target"]["server"]["launch"]) == ("predict", "small")
    page = browser.get(answer["Location"]).content.decode()
    assert "prediction → measurement" in page and "1. prediction" in page


def test_yaml_and_form_are_the_same_object(browser: Client, world: World) -> None:
    address = "/studies/new/search/"
    data = fields(browser.get(address).content.decode())
    page = browser.post(address, {**data, "do": "to_yaml"}).content.decode()
    assert "batch.token_budget" in page and "confirm:" in page


def test_the_front_is_shown_with_its_figures(browser: Client, world: World) -> None:
    page = browser.get(f"/studies/{world.study.pk}/").content.decode()
    assert "beaten by none" in page and "Show as table" in page and "Go on" in page
