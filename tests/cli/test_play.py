"""Local play: file to verdict in this process, on the modelled target and on real kernels."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headway import profiles
from scheduler_core.spec.target import Profile
from tests.cli.conftest import EXPERIMENT, Headway


def test_play_ends_with_the_verdicts_exit_status_and_prints_all_of_it(
    headway: Headway, written: Callable[..., Path]
) -> None:
    ran = headway("play", written(), "--json")
    data = json.loads(ran.out)
    assert ran.status == data["verdict"]["exit_code"] == data["verdict"]["comparisons"][0]["exit_code"]
    assert ran.status in (0, 10, 20, 30)
    played = [(run["arm"], run["repeat"]) for run in data["runs"]]
    assert [repeat for _, repeat in played] == [0, 0, 1, 1]
    assert [{arm for arm, _ in played[:2]}, {arm for arm, _ in played[2:]}] == [{"baseline", "chunked"}] * 2
    for run in data["runs"]:
        assert run["plan_digest"] == data["plan_digest"]
        assert run["offered"] == 40 == sum(run["outcomes"].values())
        assert run["audit"]["passed"]
        assert run["level"] == "simulation"
    assert "run 1 of 4" in ran.err
    assert "bundled reference" in ran.err


def test_the_same_file_gives_the_same_answer(headway: Headway, written: Callable[..., Path]) -> None:
    first, again = (json.loads(headway("play", written(), "--json").out) for _ in range(2))
    assert first == again


def test_without_json_the_verdict_is_told_in_words(headway: Headway, written: Callable[..., Path]) -> None:
    ran = headway("play", written())
    assert "chunked against baseline" in ran.out
    assert "ttft_p95_ms" in ran.out


def test_play_writes_what_build_servers_and_pull_requests_take(
    headway: Headway, written: Callable[..., Path], tmp_path: Path
) -> None:
    page, suite = tmp_path / "page.html", tmp_path / "suite.xml"
    ran = headway("play", written(), "--report", page, "--junit", suite, "--pr")
    assert ran.out.startswith("## small\n")
    assert page.read_text().startswith("<!doctype html>") and "<h2>Runs</h2>" in page.read_text()
    assert 'name="chunked against baseline"' in suite.read_text()


def test_play_opens_no_connection(headway: Headway, written: Callable[..., Path], monkeypatch: Any) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("local play used the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert headway("play", written(repeats=1)).status in (10, 20, 30)


def test_a_calibration_of_this_machine_is_preferred_and_named(
    headway: Headway, written: Callable[..., Path], profile: Profile
) -> None:
    profiles.keep(profile)
    ran = headway("play", written(repeats=1), "--json")
    assert json.loads(ran.out)["profile"]["name"] == "slow"
    assert "calibrated on this machine" in ran.err
    named = written(repeats=1, target={"modelled": {"profile": "reference-cpu-demo-s"}})
    assert json.loads(headway("play", named, "--json").out)["profile"]["name"] == "reference-cpu-demo-s"


def test_an_unknown_profile_lists_those_there_are(headway: Headway, written: Callable[..., Path]) -> None:
    ran = headway("play", written(target={"modelled": {"profile": "nope"}}))
    assert ran.status == 1
    assert "known here: reference-cpu-demo-s" in ran.err


def test_evidence_is_kept_on_request(headway: Headway, written: Callable[..., Path], tmp_path: Path) -> None:
    headway("play", written(repeats=1), "--evidence", tmp_path / "kept")
    names = {path.name for path in (tmp_path / "kept").rglob("*")}
    assert {"plan.jsonl.gz", "run-001", "run-002", "requests.parquet", "summary.json"} <= names


def test_a_trace_file_is_found_beside_the_experiment(
    headway: Headway, written: Callable[..., Path], tmp_path: Path
) -> None:
    rows = "".join(f"{number / 10},{20 + number},{3 + number % 5}\n" for number in range(60))
    (tmp_path / "mine.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    trace = {"file": "mine.csv", "format": "csv", "time_unit": "s", "rows": "1-30"}
    data = json.loads(headway("play", written(workload={"trace": trace}, repeats=1), "--json").out)
    assert data["runs"][0]["offered"] == 30


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"repeets": 3}, "did you mean 'repeats'?"),
        ({"arms": {"a": {"policy": "vlm_v1"}, "b": {"policy": "static"}}}, "did you mean 'vllm_v1'?"),
        ({"workload": {"trace": {"file": "missing.csv"}}}, "there is no file"),
        ({"workload": {"trace": {"dataset": "trc_1"}}}, "lives on a server"),
    ],
)
def test_a_mistake_is_one_clear_line_and_status_1(
    headway: Headway, written: Callable[..., Path], changes: dict[str, Any], words: str
) -> None:
    ran = headway("play", written(**changes))
    assert ran.status == 1
    assert words in ran.err
    assert ran.out == ""


@pytest.mark.parametrize("text", ["a: [", "- 1", "\x00", "a: &a [*a]"])
def test_a_file_that_is_no_experiment_is_refused(headway: Headway, tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    assert headway("play", path).status == 1
    assert headway("play", tmp_path / "missing.yaml").status == 1


def test_real_kernels_serve_every_arm_the_same(headway: Headway, written: Callable[..., Path]) -> None:
    """Two arms on the torch target: every request answered, the same tokens in both."""
    workload = {
        "arrivals": {"constant": {"rate_rps": 50}},
        "lengths": {"prompt": {"fixed": 12}, "output": {"fixed": 4}},
        "requests": 6,
    }
    target = {"torch": {"device": "cpu", "threads": 1, "kv_blocks": 64}}
    ran = headway("play", written(workload=workload, target=target, repeats=1), "--json")
    data = json.loads(ran.out)
    assert [run["outcomes"]["finished"] for run in data["runs"]] == [6, 6]
    assert {run["level"] for run in data["runs"]} == {"cpu_kernels"}
    assert data["runs"][0]["lengths_digest"] == data["runs"][1]["lengths_digest"]


def test_an_experiment_that_nobody_can_serve_says_so(headway: Headway, written: Callable[..., Path]) -> None:
    """Every request is longer than the pool: all are rejected, the runs still end and are judged."""
    workload = {**EXPERIMENT["workload"], "lengths": {"prompt": {"fixed": 3000}, "output": {"fixed": 4}}}
    target = {"modelled": {"kv_blocks": 16}}
    ran = headway("play", written(workload=workload, target=target, repeats=1), "--json")
    assert ran.status in (1, 20, 30)


def test_looks_are_played_until_one_decides(headway: Headway, written: Callable[..., Path], tmp_path: Path) -> None:
    """Chunked prefill against static batches is clear at the first look; a tenth of a percent of itself never is."""
    looks = {"primary": "ttft_p95_ms", "better_by": "10%", "guard": {}, "looks": [5, 6, 7]}
    clear = json.loads(headway("play", written(goal=looks), "--json").out)
    assert len(clear["runs"]) == 10
    same = {"a": {"policy": "vllm_v1"}, "b": {"policy": "vllm_v1", "batch": {"token_budget": 96}}}
    goal = {**looks, "primary": "throughput_requests_per_s", "better_by": "0.1%"}
    file = written(goal=goal, arms=same, target={"modelled": {"noise": True}})
    vague = json.loads(headway("play", file, "--json", "--evidence", tmp_path / "kept").out)
    comparison = vague["verdict"]["comparisons"][0]
    assert len(vague["runs"]) == 14, comparison["headline"]
    assert (comparison["pairs"], comparison["next_look"]) == (7, None)
    assert [run["repeat"] for run in vague["runs"]] == [repeat for repeat in range(7) for _ in "ab"]
