"""A scratch home for the command line's files, and a way to run it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.cli import main
from scheduler_core.spec.target import Affine, Profile

EXPERIMENT: dict[str, Any] = {
    "name": "small",
    "workload": {
        "arrivals": {"poisson": {"rate_rps": 20}},
        "lengths": {"prompt": {"uniform": {"low": 20, "high": 200}}, "output": {"uniform": {"low": 4, "high": 20}}},
        "requests": 40,
        "seed": 3,
    },
    "target": {"modelled": {}},
    "arms": {
        "baseline": {"policy": "static", "batch": {"size": 8}},
        "chunked": {"policy": "vllm_v1", "batch": {"token_budget": 256}},
    },
    "repeats": 2,
}


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    status: int
    out: str
    err: str


Headway = Callable[..., Ran]


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: Any, tmp_path: Path) -> None:
    for name in ("HEADWAY_URL", "HEADWAY_TOKEN", "TRACE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def headway(capsys: Any) -> Headway:
    """Run the command line in this process."""

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Ran(status, captured.out, captured.err)

    return run


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """An experiment file with some keys changed."""

    def write(**changes: Any) -> Path:
        path = tmp_path / "experiment.yaml"
        path.write_text(yaml.safe_dump({**EXPERIMENT, **changes}, sort_keys=False))
        return path

    return write


@pytest.fixture
def profile() -> Profile:
    """A slow machine: 4 ms a step, 0.1 ms a prompt token, 1 ms a decoding request."""
    return slow_profile()


def slow_profile() -> Profile:
    """As the fixture ``profile``, for tests that share what was made from it."""
    return Profile(
        name="slow",
        model="demo-s",
        device="cpu",
        dtype="float32",
        cost=Affine(base_ns=4e6, prefill_token_ns=1e5, decode_request_ns=1e6, context_token_ns=100),
        residual_share=0.05,
        drift_share=0.02,
        held_out_error_share=0.05,
        domain={},
        steps_measured=100,
        measured_on={},
        kv_blocks=1024,
        model_length=4096,
    )
