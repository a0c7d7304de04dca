"""Making machine code of the core's hot modules: mypyc turns them into C, the machine's C compiler does the rest."""

import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import chdir, redirect_stdout
from pathlib import Path

from scheduler_core import compiled
from scheduler_core.types.errors import HeadwayError

# Types are the whole project's check; pydantic's constructors need a plugin that this does without.
_TYPES = (
    "--config-file=",
    "--no-incremental",
    "--follow-imports=silent",
    "--ignore-missing-imports",
    "--disable-error-code=call-arg",
)
# It translates a generator expression that is not used up at once as a list, which may mean something else.
_UNFAITHFUL = "Treating generator comprehension as list"
_OPTIMISATION = "1"
# Run in a process of its own, with a folder of machine code and without: what does not load, or decides otherwise, is
# never put in place.
_TRIAL = """
import importlib, pathlib, sys
from scheduler_core import compiled
sys.meta_path[:0] = [compiled.Finder(compiled.files_in(pathlib.Path(made))) for made in sys.argv[1:]]
for module in compiled.MODULES:
    importlib.import_module(module)
from scheduler_core.testing.decisions import digest
print(digest())
"""
_WORK = ".build-"


class CompileError(HeadwayError):
    """Nothing can be compiled here; the message says why."""


def compile_core() -> Path | None:
    """Put machine code of the sources as they are now into the environment; None if it is there already.

    Older machine code goes. It takes a minute or two.

    Raises:
        CompileError: there is no mypyc or C compiler, or one of them refuses.
    """
    target = compiled.folder()
    if target.is_dir():
        return None
    if importlib.util.find_spec("mypyc") is None:
        raise CompileError("mypy is not installed in this environment; `make compile` installs it")
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        raise CompileError("no C compiler (cc, gcc or clang) on PATH")
    try:
        compiled.PLACE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=compiled.PLACE, prefix=_WORK) as work:
            made = _build(Path(work))
            _try(made)
            if compiled.folder() != target:
                raise CompileError("a source changed while it was compiled; compile again")
            made.rename(target)
    except OSError as error:
        raise CompileError(str(error)) from None
    for old in compiled.PLACE.iterdir():
        if old != target and not old.name.startswith(_WORK):
            shutil.rmtree(old, ignore_errors=True)
    return target


def _build(work: Path) -> Path:
    """Compile in the folder ``work``; the folder in it that holds the result."""
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext
    from setuptools.errors import BaseError, CCompilerError

    said = io.StringIO()
    sources = [str(compiled.source_of(module).relative_to(compiled.ROOT)) for module in compiled.MODULES]
    options = [*_TYPES, f"--cache-dir={os.devnull}", *sources]
    try:
        with chdir(compiled.ROOT), redirect_stdout(said):  # mypy names modules by their path from here
            extensions = mypycify(
                options, opt_level=_OPTIMISATION, debug_level="0", multi_file=True, target_dir=str(work / "c")
            )
            unfaithful = [line for line in said.getvalue().splitlines() if _UNFAITHFUL in line]
            if unfaithful:
                raise CompileError(unfaithful[0])
            build = build_ext(Distribution({"name": "core", "ext_modules": extensions}))
            build.build_lib, build.build_temp = str(work / "lib"), str(work / "objects")
            build.ensure_finalized()
            build.run()
    except (BaseError, CCompilerError, SystemExit) as error:  # mypyc ends the process where it finds fault
        lines = [*said.getvalue().strip().splitlines(), str(error)]
        told = next((line for line in lines if "error:" in line.lower()), lines[-1])
        raise CompileError(f"the core does not compile: {told}") from None
    return work / "lib"


def _try(made: Path) -> None:
    """`CompileError` when machine code in the folder ``made`` does not load, or decides otherwise than its sources."""
    if _decided(str(made)) != _decided():
        raise CompileError("the core was compiled, but decides otherwise than its sources")


def _decided(*made: str) -> str:
    environ = {**os.environ, compiled.SWITCH: "1"}  # nothing but what is tried
    argv = [sys.executable, "-c", _TRIAL, *made]
    done = subprocess.run(argv, cwd=compiled.ROOT, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise CompileError(f"the core was compiled, but does not run: {last[0]}")
    return done.stdout
