"""The window under the server's own profiler: after the run, outside every figure, and stopped whatever happens."""

import json
import urllib.request
from pathlib import Path
from typing import Any

from gpu_runner.server.mock.behaviour import Behaviour, Scripted
from gpu_runner.server.mock.process import mock_server
from scheduler_core.evidence.schema import NOTES
from scheduler_core.types.client_records import Profiled
from tests.server.playing import Played, evenly, play_at

QUICK = Scripted(ttft_ms=5, gap_ms=1)


def play(behaviour: Behaviour, folder: Path, **server: Any) -> tuple[Played, list[dict[str, Any]]]:
    """A plan of ten requests 40 ms apart, and every answer that the server gave, in order."""
    with mock_server(behaviour) as url:
        played = play_at(url, evenly(10, gap_ms=40), folder, **server)
        with urllib.request.urlopen(f"{url}/mock/truth", timeout=10) as answer:
            return played, json.load(answer)


def test_the_plan_s_first_seconds_are_played_again_after_the_run(tmp_path: Path) -> None:
    """Within 0.2 s of the plan's start arrive five requests: these come again, with prompts of their own."""
    played, truth = play(Behaviour(scripted=QUICK, profiler=True), tmp_path, profile_s=0.2)
    assert [row["profiled"] for row in truth] == [False] * 10 + [True] * 5
    measured, again = truth[:10], truth[10:]
    assert not {tuple(row["ids"]) for row in measured} & {tuple(row["ids"]) for row in again}
    (window,) = (record for record in played.records if isinstance(record, Profiled))
    assert (window.requests, window.problem) == (5, "")
    assert played.summary.offered == played.summary.measured == 10
    assert any("profiler looked at 5 requests" in note for note in played.summary.fingerprint[NOTES])


def test_a_server_without_a_profiler_is_played_and_said_to_have_none(tmp_path: Path) -> None:
    played, truth = play(Behaviour(scripted=QUICK), tmp_path, profile_s=0.2)
    assert len(truth) == 10
    assert played.summary.complete
    notes = played.summary.fingerprint[NOTES]
    assert "no profile of the server: /start_profile answers with status 404" in notes
