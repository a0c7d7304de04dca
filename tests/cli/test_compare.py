"""Two servers in one line: the same traffic, a verdict, and files for whoever reads them."""

import json
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gpu_runner.server.mock.behaviour import Behaviour, Scripted
from gpu_runner.server.mock.process import mock_server
from headway.compare import comparison
from scheduler_core.types.errors import InputError
from tests.cli.conftest import Headway

QUIET = ["--set", "target.server.client={late_ms: 5000, self_test_s: 0}", "--set", "target.server.warmup_requests=0"]
SMALL = ["--set", "workload.lengths_scale=0.02", "--set", "workload.rate_rps=40", "--set", "workload.requests=24"]


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[str, str]]:
    with (
        mock_server(Behaviour(scripted=Scripted(ttft_ms=120, gap_ms=5))) as slow,
        mock_server(Behaviour(scripted=Scripted(ttft_ms=30, gap_ms=5), api_key="k")) as fast,
    ):
        yield slow, fast


def test_the_faster_server_wins_and_every_file_says_so(
    headway: Headway, servers: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_API_KEY", "k")
    names = ("v.xml", "v.html", "v.prom", "v.json", "v.md")
    files = [word for name in names for word in ("--write", str(tmp_path / name))]
    goal = ["--set", "goal={primary: ttft_p50_ms, better_by: 10%, guard: {}}"]
    ran = headway("compare", *servers, *QUIET, *SMALL, *goal, *files)
    assert ran.status == 0, ran.err
    assert ran.out.startswith("accept   candidate against baseline")
    assert ElementTree.parse(tmp_path / "v.xml").getroot().tag == "testsuites"
    data = json.loads((tmp_path / "v.json").read_text())
    assert {run["level"] for run in data["runs"]} == {"external_server"}
    assert {run["arm"] for run in data["runs"]} == {"baseline", "candidate"}
    page = (tmp_path / "v.prom").read_text()
    assert 'headway_decision{experiment="two servers",candidate="candidate",decision="accept"} 1' in page
    assert 'headway_ttft_p50_ms{experiment="two servers",arm="baseline",repeat="1"}' in page
    assert "headway_idle_gap_ms{" not in page  # absent is no sample, never 0
    assert "accept" in (tmp_path / "v.md").read_text() and "<html" in (tmp_path / "v.html").read_text()


def test_a_refused_secret_and_a_dead_server_are_one_clear_line(headway: Headway, servers: tuple[str, str]) -> None:
    ran = headway("compare", servers[1], servers[1], *QUIET, *SMALL)
    assert ran.status == 1
    assert "refuses the secret (status 401)" in ran.err
    dead = headway("compare", "http://127.0.0.1:9", servers[0], *QUIET, *SMALL, "--set", "repeats=1")
    assert "cannot connect to 127.0.0.1:9" in dead.err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("repeats", "write a name and a value"),
        ("repeeats=3", "did you mean 'repeats'?"),
        ("name.x=3", "name has no parts"),
        ("target.server.modle=x", "did you mean 'model'?"),
        ("target.server.scrape_ms=1", "target.server.scrape_ms"),
    ],
)
def test_a_wrong_setting_is_named(change: str, words: str) -> None:
    with pytest.raises(InputError, match=words.replace("?", r"\?")):
        comparison("http://127.0.0.1:1", "http://127.0.0.1:2", None, [change])


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://user:pw@x", "http://x?y=1", "http://x:0"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InputError, match=r"target\.server\.arms"):
        comparison(url, "http://127.0.0.1:2", None)
