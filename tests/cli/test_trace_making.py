"""``headway trace convert`` and ``draw``: files that a workload can name as they stand."""

import json
from pathlib import Path

from scheduler_core.spec.workload import Trace
from scheduler_core.workload.traces.data import TraceData
from scheduler_core.workload.traces.reader import read_trace
from tests.cli.conftest import Headway


def read_back(out: str) -> TraceData:
    """The trace that the printed section names."""
    section = json.loads(out.removeprefix("trace: "))
    return read_trace(Path(section["file"]), Trace.model_validate(section))


def test_a_log_becomes_a_trace_that_can_be_named_at_once(headway: Headway, tmp_path: Path) -> None:
    rows = [
        {
            "timestamp": f"2026-11-30T10:00:0{number}",
            "event": "request.finished",
            "obj": {"input_ids": list(range(40))},
            "out": {
                "meta_info": {
                    "prompt_tokens": 40, "completion_tokens": 5, "cached_tokens": 10, "e2e_latency": 0.5,
                }
            },
        }
        for number in range(3)
    ]  # fmt: skip
    (tmp_path / "log").write_text("\n".join(map(json.dumps, rows)))
    ran = headway("trace", "convert", str(tmp_path / "log"), str(tmp_path / "out.jsonl"), "--from", "sglang")
    assert ran.status == 0
    assert "25 % of the prompt tokens" in ran.err
    trace = read_back(ran.out)
    assert (len(trace), trace.observed_hit_share()) == (3, 0.25)


def test_an_unknown_kind_of_log_names_those_that_there_are(headway: Headway, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("{}")
    ran = headway("trace", "convert", str(tmp_path / "log"), str(tmp_path / "out.jsonl"), "--from", "apache")
    assert ran.status == 1
    assert "otlp, litellm, vllm, sglang, dynamo" in ran.err
    assert not (tmp_path / "out.jsonl").exists()


def test_clients_are_drawn_the_same_for_a_seed(headway: Headway, tmp_path: Path) -> None:
    (tmp_path / "a-trace.csv").write_text("0,3,1,Gamma,1,1\n600,0,,,,\n")
    window = {"input_tokens": "{20: 1.0}", "output_tokens": "{4: 1.0}"}
    (tmp_path / "a-dataset.json").write_text(json.dumps({"0": window}))
    texts = []
    for name, seed in (("one", 4), ("two", 4), ("three", 5)):
        out = tmp_path / f"{name}.jsonl"
        ran = headway("trace", "draw", str(tmp_path), str(out), "--for-s", "100", "--seed", str(seed))
        assert ran.status == 0
        assert 200 < len(read_back(ran.out)) < 400
        texts.append(out.read_text())
    assert texts[0] == texts[1] != texts[2]
