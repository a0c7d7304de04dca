"""Compiles the CPU kernels with the machine's C compiler, once per machine and source; never required."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

from gpu_runner.engine.fingerprint import cpu_model

_HERE = Path(__file__).parent
_UNITS = ("paged", "elementwise", "matmul", "compact", "calls")
_SOURCES = sorted(path.name for path in _HERE.glob("*.[ch]"))
_FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fno-math-errno", "-fPIC")
_COMPILE_LIMIT_S = 120


class UnavailableError(Exception):
    """Why the compiled kernels cannot be used here."""


@cache
def library() -> ctypes.CDLL:
    """The loaded kernels; `UnavailableError` says why there are none."""
    if os.environ.get("HEADWAY_NATIVE_KERNELS", "1") == "0":
        raise UnavailableError("switched off by HEADWAY_NATIVE_KERNELS=0")
    compiler = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    if compiler is None:
        raise UnavailableError("no C compiler (cc, gcc or clang) on PATH")
    target = _cache_folder() / f"kernels-{_key(compiler)}.so"
    if not target.is_file():
        _build(compiler, target)
    try:
        return ctypes.CDLL(str(target))
    except OSError as error:
        raise UnavailableError(f"{target} does not load: {error}") from None


def has_amx() -> bool:
    """Whether kernels may use Intel AMX: this machine has it, and ``HEADWAY_AMX=0`` does not forbid it.

    Raises:
        UnavailableError: There are no compiled kernels.
    """
    return os.environ.get("HEADWAY_AMX", "1") != "0" and bool(library().amx())


def _key(compiler: str) -> str:
    """Names everything the machine code depends on, so that a shared folder never serves another machine's."""
    digest = hashlib.blake2b(digest_size=10)
    for name in _SOURCES:
        digest.update((_HERE / name).read_bytes())
    # Its predefined macros: its version and every instruction set that it finds here and may use.
    asked = [compiler, *_FLAGS, "-dM", "-E", "-x", "c", os.devnull]
    macros = subprocess.run(asked, capture_output=True, check=False, timeout=30).stdout
    digest.update(repr((_FLAGS, macros, cpu_model())).encode())
    digest.update(str(_openmp_library()).encode())
    return digest.hexdigest()


def _cache_folder() -> Path:
    """A folder of this user for compiled code; a private temporary one where home is not writable."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "headway" / "kernels"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="headway-kernels-"))


def _openmp_library() -> Path | None:
    """PyTorch's own OpenMP runtime: using another one beside it would put two thread pools on the same cores."""
    found = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    return found[0] if found else None


def _build(compiler: str, target: Path) -> None:
    openmp = _openmp_library()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as folder:
        linked = Path(folder) / "kernels.so"
        objects = [str(Path(folder) / f"{unit}.o") for unit in _UNITS]
        parallel = ["-fopenmp"] if openmp else []
        for unit, made in zip(_UNITS, objects, strict=True):
            _run([compiler, *_FLAGS, *parallel, "-c", str(_HERE / f"{unit}.c"), "-o", made])
        _run([compiler, "-shared", *objects, *([str(openmp)] if openmp else []), "-lm", "-o", str(linked)])
        linked.replace(target)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_COMPILE_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{command[0]} did not run: {error}") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise UnavailableError(f"{command[0]} failed: {lines[0]}")
