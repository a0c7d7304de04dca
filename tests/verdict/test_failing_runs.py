"""Runs in which everything fails are results, not crashes."""

from pathlib import Path

from scheduler_core.evidence.schema import RunSummary
from scheduler_core.verdict.decide import decide
from scheduler_core.verdict.text import render
from tests.evidence.played import summarise
from tests.evidence.scenes import Scene
from tests.verdict.arms import experiment


def run(folder: Path, arm: str, repeat: int, *, fails: bool) -> RunSummary:
    """Thirty requests of two tokens each; all fail after their first token, or none does."""
    scene = Scene(30)
    for request in range(30):
        at = 20 * request
        scene.arrive(request, at)
        scene.admit(request, at)
        scene.step(at, at + 10, [(request, 10)])
        if not fails:
            scene.step(at + 10, at + 15, [(request, 1)])
        scene.finish(request, at + 15, "failed" if fails else "finished")
    return summarise(scene.end(600), folder, arm=arm, repeat=repeat).model_copy(
        update={"policy": {"policy": "vllm_v1", "batch": {"token_budget": 1 + (arm == "candidate")}},
                "decisions_digest": arm}
    )  # fmt: skip


def test_candidate_of_which_every_request_fails_is_rejected(tmp_path: Path) -> None:
    runs = [
        run(tmp_path, arm, repeat, fails=arm == "candidate") for repeat in range(5) for arm in ("baseline", "candidate")
    ]
    assert all(item.audit.passed for item in runs)
    verdict = decide(experiment(), runs)
    found = verdict.comparisons[0]
    assert (found.decision, found.exit_code) == ("reject", 20)
    assert "completion falls from 100.0 % to 0.0 %" in found.headline
    assert runs[1].reasons == {"failed: decode: length": 30}
    assert runs[1].metrics["ttft_p95_ms"].n == 0
    assert found.headline in render(verdict)


def test_a_baseline_that_finished_nothing_is_no_reference(tmp_path: Path) -> None:
    """Thirty of thirty failed for length: the answer names the count and the reason, not a missing percentile."""
    runs = [run(tmp_path, arm, repeat, fails=True) for repeat in range(5) for arm in ("baseline", "candidate")]
    found = decide(experiment(), runs).comparisons[0]
    assert (found.comparable, found.decision, found.exit_code) == (False, None, 30)
    reason = "baseline finished none of 30 requests (30 failed: decode: length)"
    assert reason in found.headline
    assert "completion 0.0 % (baseline) and 0.0 % (candidate)" in " ".join(found.conditions)


def test_nothing_measured_leaves_typed_absences(tmp_path: Path) -> None:
    """A warm-up of 100 % leaves no measured request: no figure is a zero or a crash."""
    scene = Scene(1)
    scene.arrive(0, 0)
    scene.admit(0, 0)
    scene.step(0, 10, [(0, 10)])
    scene.finish(0, 10)
    summary = summarise(scene.end(10), tmp_path, workload={"warmup_share": 1.0, "requests": 1})
    assert (summary.measured, summary.audit.passed) == (0, True)
    assert summary.metrics["goodput_rps"].value is None
    assert summary.metrics["ttft_p95_ms"].n == 0
