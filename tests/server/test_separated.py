"""SGLang's separated pools behind a router: each pool's own metrics, the copy between them, a unified server beside."""

from pathlib import Path
from typing import Any

import pytest

from gpu_runner.server.mock.behaviour import Behaviour, Scripted, Separated
from gpu_runner.server.mock.process import mock_server
from headway.play import play
from scheduler_core.evidence.schema import Figure, RunSummary
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.parse import parse

SCRIPT = Scripted(ttft_ms=60, gap_ms=10)
TRANSFER_MS, TOKEN_BYTES, PROMPT, COUNT = 90.0, 2**16, 32, 12


def experiment(unified: str, router: str) -> ExperimentSpec:
    arms: dict[str, Any] = {
        "unified": {"url": unified},
        "separated": {
            "url": router,
            "sources": [
                {"url": f"{router}/prefill", "role": "prefill", "pool": "p", "devices": 2},
                {"url": f"{router}/decode", "role": "decode", "pool": "d"},
            ],
        },
    }
    server = {"arms": arms, "scrape_ms": 50, "warmup_requests": 0, "client": {"self_test_s": 0, "late_ms": 10_000}}
    return parse(
        ExperimentSpec,
        {
            "name": "one pool or two",
            "workload": {
                "arrivals": {"constant": {"rate_rps": 10}},
                "lengths": {"prompt": {"fixed": PROMPT}, "output": {"fixed": 6}},
                "requests": COUNT,
            },
            "target": {"server": server},
            "arms": {name: {"policy": "as_served"} for name in arms},
            "baseline": "unified",
            "repeats": 1,
        },
    )


def figure(run: RunSummary, name: str) -> Figure:
    return run.metrics[name]


@pytest.mark.timeout(120)
def test_separated_pools_are_compared_with_a_unified_server(tmp_path: Path) -> None:
    """The copy of 90 ms is in every first token of one arm and in no gap, and its bytes are those of the prompts."""
    pools = Separated(transfer_ms=TRANSFER_MS, token_bytes=TOKEN_BYTES)
    with (
        mock_server(Behaviour(dialect="sglang", scripted=SCRIPT)) as unified,
        mock_server(Behaviour(dialect="sglang", scripted=SCRIPT, separated=pools)) as router,
    ):
        played = play(experiment(unified, router), base=tmp_path, on_step=lambda step: None)
    assert not played.failures, played.failures
    runs = {run.arm: run for run in played.runs}
    one, two = runs["unified"], runs["separated"]
    assert two.outcomes["finished"] == one.outcomes["finished"] == COUNT
    handoff, moved = figure(two, "handoff_ms"), figure(two, "transfer_bytes")
    assert handoff.value == pytest.approx(TRANSFER_MS) and figure(one, "handoff_ms").value is None
    assert moved.value == COUNT * PROMPT * TOKEN_BYTES
    later, first = figure(two, "ttft_p50_ms").value, figure(one, "ttft_p50_ms").value
    assert later is not None and first is not None and later - first > 0.5 * TRANSFER_MS
    assert figure(two, "prefill_mean_ms").value == pytest.approx(SCRIPT.ttft_ms)
    assert two.deployment["server"] == "sglang" and two.deployment["settings.disaggregation_mode"] == "prefill"
    assert played.verdict is not None and played.verdict.comparisons[0].comparable, played.verdict


def test_only_a_scripted_mock_of_sglang_has_separated_pools() -> None:
    with pytest.raises(ValueError, match="separated: is for a scripted mock that speaks as sglang"):
        Behaviour(separated=Separated())
