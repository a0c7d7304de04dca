"""A third independent server, ``transformers serve``, started here on the CPU and compared with itself.

Needs ``HEADWAY_TRANSFORMERS_PYTHON``, an interpreter that has transformers with its extra ``serving`` and accelerate.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.peers.engines import folder
from gpu_runner.server.launch.launcher import Launched
from headway.play import play
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.launch import LaunchTemplate
from scheduler_core.spec.parse import parse

PYTHON = os.environ.get("HEADWAY_TRANSFORMERS_PYTHON", "")
pytestmark = [
    pytest.mark.vllm,  # as the tests of a real vLLM: only where the server is installed
    pytest.mark.skipif(not PYTHON, reason="HEADWAY_TRANSFORMERS_PYTHON names no transformers"),
    pytest.mark.timeout(900),
]
REQUESTS = 6
NEEDS = "import accelerate, transformers.utils as u; raise SystemExit(not u.import_utils.is_serve_available())"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Address and model name of a server with a small model of seeded weights."""
    if subprocess.run([PYTHON, "-c", NEEDS], capture_output=True, check=False).returncode:
        pytest.skip("transformers has not what it serves with: its extra serving, and accelerate")
    model = str(folder("demo-s"))
    code = "import sys; from transformers.cli.transformers import main; sys.exit(main())"
    command = [PYTHON, "-c", code, "serve", model, "--host", "127.0.0.1", "--port", "{port}"]
    env = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
    template = {"server": "openai", "command": command, "env": env, "policy_flags": False, "ready_s": 300}
    launched = Launched(LaunchTemplate.model_validate(template), (), tmp_path / "server.log")
    try:
        launched.start(lambda: False)
        yield launched.url, model
    finally:
        launched.close()


def test_a_server_that_is_neither_vllm_nor_sglang_is_compared(served: tuple[str, str], tmp_path: Path) -> None:
    """Two arms on one server, in pairs: every answer is counted, and the same is not found better than itself."""
    url, model = served
    form: dict[str, Any] = {
        "name": "a third server",
        "workload": {
            "arrivals": {"constant": {"rate_rps": 1.0}},
            "lengths": {"prompt": {"fixed": 24}, "output": {"fixed": 6}},
            "requests": REQUESTS,
        },
        "target": {
            "server": {"url": url, "model": model, "client": {"self_test_s": 0, "late_ms": 10_000}, "scrape_ms": 1000}
        },
        "arms": {"a": {"policy": "as_served"}, "again": {"policy": "as_served"}},
        "baseline": "a",
        "repeats": 2,
    }
    played = play(parse(ExperimentSpec, form), base=tmp_path, on_step=lambda step: None, evidence=tmp_path / "kept")
    assert not played.failures, played.failures
    assert len(played.runs) == 4
    for run in played.runs:
        assert run.audit.passed, run.audit.violations
        assert run.outcomes["finished"] == REQUESTS, run.reasons
        assert run.deployment["server"] == "openai" and not run.void
        ttft, tpot, e2e = (run.metrics[name].value for name in ("ttft_mean_ms", "tpot_mean_ms", "e2e_mean_ms"))
        assert ttft is not None and tpot is not None and e2e is not None and 0 < tpot < ttft + e2e and ttft < e2e
        assert run.metrics["queue_length_mean"].value is None  # it exports nothing, and that is no 0
        assert any("as text" in note for note in run.fingerprint["notes"]), run.fingerprint["notes"]
    assert played.verdict is not None and played.verdict.comparisons[0].decision != "accept"
