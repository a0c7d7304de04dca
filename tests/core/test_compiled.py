"""Machine code of the core: of these very sources, found by name, and deciding what Python decides."""

import ast
import hashlib
import os
import pickle
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from pathlib import Path
from typing import Any

import pytest

from bench import cluster, core
from headway import compiling
from scheduler_core import compiled
from scheduler_core.policies.presets import build_policy
from scheduler_core.sim.cost import StepCost
from scheduler_core.sim.fastforward import FastForward
from scheduler_core.sim.lane import LaneLoad
from scheduler_core.testing import decisions
from scheduler_core.types.arrival import PlannedRequest
from tests.structure.sources import sources

SUFFIX = EXTENSION_SUFFIXES[0]


def test_every_module_has_a_source() -> None:
    assert not [module for module in compiled.MODULES if not compiled.source_of(module).is_file()]


def test_who_extends_a_compiled_class_is_compiled() -> None:
    """Machine code knows what its classes look like, and refuses others that extend them."""
    parsed = {source.module: source.tree for source in sources()}
    classes = {
        node.name for module in compiled.MODULES for node in parsed[module].body if isinstance(node, ast.ClassDef)
    }
    wrong = [
        f"{module}.{node.name}"
        for module, tree in parsed.items()
        if module not in compiled.MODULES
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and classes & {base.id for base in node.bases if isinstance(base, ast.Name)}
    ]
    assert not wrong


def test_a_changed_source_has_no_machine_code(tmp_path: Path) -> None:
    """Whichever it is: what a compiled module means may be written in one that is not compiled itself."""
    imported = {
        node.module.split(".")[1]
        for module in compiled.MODULES
        for node in ast.parse(compiled.source_of(module).read_text()).body
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("scheduler_core.")
    }
    for part in imported:
        shutil.copytree(compiled.ROOT / "scheduler_core" / part, tmp_path / "scheduler_core" / part)
    before = compiled.folder(tmp_path)
    assert before == compiled.folder()
    for part in sorted(imported):
        source = next((tmp_path / "scheduler_core" / part).glob("*.py"))
        source.write_text(source.read_text() + "\n")
        before, changed = compiled.folder(tmp_path), before
        assert before != changed, part


def test_machine_code_is_found_by_the_name_of_its_module(tmp_path: Path) -> None:
    file = tmp_path / "scheduler_core" / "sched" / f"cohort{SUFFIX}"
    file.parent.mkdir(parents=True)
    file.touch()
    files = compiled.files_in(tmp_path)
    assert files == {"scheduler_core.sched.cohort": file}
    found = compiled.Finder(files).find_spec("scheduler_core.sched.cohort")
    assert found is not None
    assert (found.origin, type(found.loader)) == (str(file), ExtensionFileLoader)
    assert compiled.Finder(files).find_spec("scheduler_core.sched.planner") is None


def test_without_a_compiler_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "PLACE", tmp_path / "machine-code")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(compiling.CompileError, match=r"no C compiler \(cc, gcc or clang\) on PATH"):
        compiling.compile_core()


def test_machine_code_that_decodes_elsewhere_is_told_by_what_it_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if counts of KV read as 0 where a subclass looks them up: the first decoder would take everybody in."""
    monkeypatch.setattr(decisions, "_instances", lambda: ())
    honest = decisions.digest()
    monkeypatch.setattr(LaneLoad, "kv_tokens", property(lambda self: 0))
    assert decisions.digest() != honest


def arrives() -> bool:
    """Whether requests come whole to another process of the load client."""
    sent: list[PlannedRequest] = list(core.workload(3, 11))
    return bool(pickle.loads(pickle.dumps(sent)) == sent)


def digest() -> str:
    """Of the rows of short simulations: alone, with a prefix cache, in a tight pool, overloaded, and in clusters."""
    rows = core.Rows()
    caches: tuple[dict[str, Any], ...] = ({}, {"prefix": "hash"}, {"blocks": 400})
    for rate, cache in ((11, caches[0]), (11, caches[1]), (11, caches[2]), (33, caches[0])):
        policy = build_policy(core.policy_spec(**cache), core.CAPACITY)
        FastForward(policy, StepCost(core.PROFILE), rows).run(core.workload(150, rate))
    for pools, groups in (("prefix", {"a": 3}), ("round_robin", {"a": 2}), ("pd", {"a": 1, "b": 1})):
        cluster.fleet(pools, groups, rows).run(tuple(core.workload(60, 20)))
    return hashlib.sha256(rows.values.tobytes()).hexdigest()


@pytest.mark.skipif(not compiled.folder().is_dir(), reason="no machine code of these sources; `make compile` makes it")
def test_machine_code_decides_what_python_decides() -> None:
    code = "from tests.core.test_compiled import *; print(compiled.used(), digest(), arrives())"
    told = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, compiled.SWITCH: "0"},
        cwd=compiled.ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not compiled.used()
    assert told.stdout.split() == ["True", digest(), "True"]
