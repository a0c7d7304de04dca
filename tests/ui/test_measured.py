"""The page that judges uploads: verdict, refusals in place, hostile names as text, nothing kept."""

from pathlib import Path
from typing import Any

from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from controlplane.experiments.models import Experiment
from tests.ui.samples import HOSTILE
from tests.verdict.measured_files import two_arms


def _fields(folder: Path, **changes: Any) -> dict[str, Any]:
    arms = two_arms(folder, factor=0.6)
    files = {
        arm: [SimpleUploadedFile(path.name, path.read_bytes()) for path in reversed(paths)]
        for arm, paths in arms.items()
    }
    return {**files, "candidate_name": "patched", "primary": "e2e_p95_ms", "better_by": "5%", **changes}


def test_two_sides_give_a_verdict_on_the_page(browser: Client, tmp_path: Path) -> None:
    answer = browser.post(reverse("measured"), _fields(tmp_path))
    body = answer.content.decode()
    assert answer.status_code == 200
    assert "patched" in body and "accept: e2e_p95_ms is better" in body
    assert "patched: read as bench-serving" in body
    assert 'value="e2e_p95_ms" selected' in body
    assert Experiment.objects.count() == 0


def test_what_is_wrong_is_said_on_the_page(browser: Client, tmp_path: Path) -> None:
    bad = SimpleUploadedFile("mine.json", b'{"ttfts": [1]}')
    for changes, words in (
        ({"candidate": []}, "choose at least one result file"),
        ({"candidate": [bad]}, "<code>mine.json</code>: is of no known tool"),
        ({"candidate_name": "baseline"}, "give them two names"),
        ({"better_by": "much"}, "is not a share"),
        ({"candidate_name": HOSTILE}, "is not a usable name"),
        ({"tool": "wrk"}, "is not one of llm-d"),
    ):
        answer = browser.post(reverse("measured"), _fields(tmp_path, **changes))
        body = answer.content.decode()
        assert (answer.status_code, words in body) == (422, True), changes
        assert HOSTILE not in body
