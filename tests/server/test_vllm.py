"""A real vLLM server on this machine's CPU, launched here: two step budgets, settings read back,
a verdict; a probe.

Needs ``HEADWAY_VLLM_PYTHON``, an interpreter that has vLLM. ``HEADWAY_VLLM_MODEL`` may name a folder with a small
model; without, one with seeded weights is made.
"""

from pathlib import Path
from typing import Any

import pytest

from gpu_runner.calibrate.probe.probe import calibrate_server
from headway.play import play
from headway.serving import local_access
from scheduler_core.sim.cost import StepCost
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.job import CalibrationJob
from scheduler_core.spec.parse import parse
from scheduler_core.spec.server import ServerTarget
from scheduler_core.types.shape import StepShape
from tests.server.real_vllm import PYTHON, write_launch_file

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not PYTHON, reason="HEADWAY_VLLM_PYTHON names no vLLM"),
    pytest.mark.timeout(1500),
]


@pytest.fixture
def launch_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = write_launch_file(tmp_path / "launch.yaml")
    monkeypatch.setenv("HEADWAY_LAUNCH_FILE", str(path))
    return path


def experiment(**changes: Any) -> ExperimentSpec:
    form: dict[str, Any] = {
        "name": "step budgets of a real server",
        "workload": {
            "arrivals": {"constant": {"rate_rps": 1.0}},
            "lengths": {"prompt": {"uniform": {"low": 64, "high": 300}}, "output": {"fixed": 12}},
            "requests": 12,
        },
        "target": {"server": {"launch": "cpu", "client": {"self_test_s": 0, "late_ms": 10_000}}},
        "arms": {
            f"budget-{budget}": {
                "policy": "vllm_v1",
                "batch": {"token_budget": budget, "size": 16},
                "cache": {"block_size": 128},
            }
            for budget in (1024, 256)
        },
        "baseline": "budget-1024",
        "repeats": 1,
        "run_limit_s": 1200,
    }  # fmt: skip
    return parse(ExperimentSpec, form | changes)


def test_two_step_budgets_of_a_real_server(launch_file: Path, tmp_path: Path) -> None:
    played = play(experiment(), base=tmp_path, on_step=lambda step: None, evidence=tmp_path / "kept")
    assert not played.failures, played.failures
    for run in played.runs:
        assert run.audit.passed, run.audit.violations
        assert run.outcomes["finished"] == 12 and run.output_tokens == 12 * 12
        assert run.deployment["server"] == "vllm" and run.deployment["version"]
        budget = 1024 if run.arm == "budget-1024" else 256
        assert run.deployment["settings.batch.token_budget"] == budget
        (confirmed,) = [note for note in run.fingerprint["notes"] if note.startswith("read back from the server: ")]
        assert {"cache.block_size 128", "batch.size 16", f"batch.token_budget {budget}"} <= set(
            confirmed.partition(": ")[2].split(", ")
        )
        assert "prefix cache: emptied before the run, and prompts are salted per run" in run.fingerprint["notes"]
        figures = run.metrics
        assert figures["model_load_ms"].value is not None and figures["model_load_ms"].value > 1000
        assert figures["running_max"].value is not None and figures["running_max"].value >= 1
        assert figures["hit_rate"].value == 0.0
        # The server's own clock starts later and ends earlier than the client's.
        ttft, prefill = figures["ttft_mean_ms"].value, figures["prefill_mean_ms"].value
        assert ttft is not None and prefill is not None and 0 < prefill <= ttft * 1.05
        assert not [note for note in run.fingerprint["notes"] if "the server counted" in note]
    assert played.verdict is not None and played.verdict.comparisons[0].comparable, played.verdict
    assert played.verdict.comparisons[0].decision is not None


def test_a_real_server_is_probed(launch_file: Path, tmp_path: Path) -> None:
    """Its own settings are in the profile, and a step with a prompt in it takes longer than one without."""
    server = parse(ServerTarget, {"launch": "cpu"})
    policy = {"policy": "vllm_v1", "batch": {"token_budget": 1024, "size": 16}, "cache": {"block_size": 128}}
    job = CalibrationJob.model_validate(
        {
            "run": "r", "name": "real", "server": server, "policy": policy, "access": local_access(server, ""),
            "workdir": str(tmp_path),
        }
    )  # fmt: skip
    found = calibrate_server(job, seconds=60, progress=lambda share: None, stop=lambda: False)
    assert found.kv_blocks > 16 and found.model_length == 1024 and found.model == "small"
    assert found.measured_on["token_budget"] == 1024 and str(found.measured_on["server"]).startswith("vllm 0.")
    assert found.steps_measured > 50 and found.domain["prefill_tokens"] >= 64
    cost = StepCost(found)
    few, prompt = cost.step_ns(StepShape(0, 1, 300, 0), 0), cost.step_ns(StepShape(512, 1, 300, 131_328, 1), 0)
    assert 0 < few < prompt
