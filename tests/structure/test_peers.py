"""Benchmarks beside peers: what a missing, wrong or slow peer is reported as."""

import json
from pathlib import Path

import pytest

from bench.peers import scheduling, simulators
from bench.peers.simulators import Load
from scheduler_core.types.arrival import PlannedRequest

OURS = {"requests_per_cpu_s": 100.0}
LOADS = {"requests_per_cpu_s": Load([PlannedRequest(index, index, 32, 4, 8, index) for index in range(2)])}


def _stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """An "interpreter" that runs ``script`` whatever program it is given, for one peer; no other is installed."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    for variable in simulators.VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HEADWAY_VIDUR_PYTHON", str(path))


def _answer(**changes: float) -> str:
    return json.dumps({"cpu_s": 0.1, "finished": 2, "output_tokens": 8, "peak_mib": 1.0, **changes})


def test_a_peer_stands_beside_ours_with_the_ratio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests in 0.1 CPU s are 20 a second; ours is 5 times that."""
    _stand_in(tmp_path, monkeypatch, f"echo '{_answer()}'")
    figures = simulators.beside(OURS, LOADS)
    assert figures["vidur"] == {"requests_per_cpu_s": 20, "requests_per_cpu_s_ratio_x": 5.0}
    assert figures["dynamo"] == "HEADWAY_DYNAMO_PYTHON names no interpreter"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (f"echo '{_answer(finished=1)}'", "1 of 2 requests finished, with 8 of 8 tokens"),
        (f"echo '{_answer(output_tokens=9)}'", "2 of 2 requests finished, with 9 of 8 tokens"),
        ("echo boom >&2; exit 3", "it ended with status 3: boom"),
        ("exec sleep 20", "2 requests were not done after 0 s"),
    ],
)
def test_a_peer_that_fails_gets_no_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    monkeypatch.setattr(simulators, "LIMIT_S", 0.3)
    _stand_in(tmp_path, monkeypatch, script)
    assert simulators.beside(OURS, LOADS)["vidur"] == {"requests_per_cpu_s": reason}


def test_a_missing_scheduler_is_a_reason_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_VLLM_PYTHON", "/nowhere/python")
    assert (
        scheduling.beside({}, {"us_per_step_8": (8, 0)}) == "HEADWAY_VLLM_PYTHON=/nowhere/python: there is no such file"
    )
