"""The common form of benchmarks."""

import json
import os
import subprocess
import sys

import pytest

from bench import harness
from bench.__main__ import HERE, names
from headway import compiling
from scheduler_core import compiled


@pytest.mark.parametrize("name", names())
def test_every_benchmark_uses_the_common_command_line(name: str) -> None:
    text = (HERE / f"{name}.py").read_text()
    assert f'harness.main("{name}"' in text
    assert "\ndef quick(" in text


def test_numbers_name_their_unit() -> None:
    harness.check_units({"run_s": 1.5, "ok": True, "name": "x", "missing": None, "arms": {"a": {"ttft_p95_ms": 2.0}}})
    harness.check_units({"by_size_ms": {"64": 1.0, "128": 2.0}, "waits_ms": [1, 2]})
    with pytest.raises(harness.UnitError, match=r"'arms\.a\.ttft' names no unit"):
        harness.check_units({"arms": {"a": {"ttft": 2.0}}})
    with pytest.raises(harness.UnitError, match="'speed' names no unit"):
        harness.check_units({"speed": [1, 2]})


def test_machine_code_that_does_not_load_ends_in_interpreted_figures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starting anew would find the same folder, and start anew."""
    monkeypatch.setattr(sys, "argv", ["core", "--full"])
    monkeypatch.setenv(compiled.SWITCH, "0")
    monkeypatch.setattr(compiled, "used", lambda: False)
    monkeypatch.setattr(compiling, "compile_core", lambda: None)
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("started anew"))
    harness.compile_core("core")
    assert "is interpreted: machine code of these sources is there, but it does not load" in capsys.readouterr().err


def test_a_quick_answer_does_not_wait_for_a_compiler(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["core", "--quick"])
    monkeypatch.setenv(compiled.SWITCH, "0")
    monkeypatch.setattr(compiled, "used", lambda: False)
    monkeypatch.setattr(compiling, "compile_core", lambda: pytest.fail("compiled"))
    harness.compile_core("core")
    assert "`make compile` makes machine code of it" in capsys.readouterr().err


def test_the_answer_is_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert harness.main("x", quick=lambda: {"run_s": 1.0}, argv=["--quick", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["bench"], answer["mode"], answer["run_s"]) == ("x", "quick", 1.0)
    assert answer["machine"]["cores_count"] >= 1


def test_full_is_chosen_and_a_failure_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADWAY_DEBUG", raising=False)

    def fail() -> harness.Figures:
        raise OSError("no disk")

    assert harness.main("x", quick=dict, full=fail, argv=["--full", "--json"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "bench.x: OSError: no disk\n"


def test_a_part_is_measured_alone_and_an_unknown_one_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    def quick(only: frozenset[str]) -> harness.Figures:
        return {"named_count": len(only), "first": min(only, default="all")}

    for text, expected in (("", (0, "all")), ("a,b", (2, "a"))):
        argv = ["--json", *(["--only", text] if text else [])]
        assert harness.main("x", quick=quick, argv=argv, parts=("a", "b", "c")) == 0
        answer = json.loads(capsys.readouterr().out)
        assert (answer["named_count"], answer["first"]) == expected
    with pytest.raises(SystemExit):
        harness.main("x", quick=quick, argv=["--only", "a,d"], parts=("a", "b"))
    assert "there is no d; choose from a, b" in capsys.readouterr().err


def test_threads_of_benchmarks_wait_as_those_of_runs_do() -> None:
    """OpenMP reads how when torch is loaded, so it is said by then; else two threads spin against each other."""
    code = "import os, sys, bench; print('torch' in sys.modules, os.environ['GOMP_SPINCOUNT'])"
    environ = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=HERE.parent, env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False 500\n"
