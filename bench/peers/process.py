"""Talking to a program that runs in a peer's own interpreter."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).parent
VLLM = "HEADWAY_VLLM_PYTHON"
"""Environment variable with the interpreter of an environment in which vLLM is installed."""


class PeerMissingError(Exception):
    """A peer is not installed here; the message says which variable names its interpreter."""


class PeerFailedError(Exception):
    """A peer's program ended or answered nonsense; the message ends with what it said."""


def interpreter(variable: str) -> str:
    """The interpreter named by an environment variable; `PeerMissingError` when it is unset or no file."""
    path = os.environ.get(variable)
    if not path:
        raise PeerMissingError(f"{variable} names no interpreter")
    if not Path(path).is_file():
        raise PeerMissingError(f"{variable}={path}: there is no such file")
    return path


class Peer:
    """A program of this folder in the interpreter that ``variable`` names, asked one JSON line at a time."""

    def __init__(self, program: str, variable: str, environment: Mapping[str, str] | None = None) -> None:
        """Start it and wait for its greeting, kept in ``greeting``."""
        self._program = program
        self._process = subprocess.Popen(
            [interpreter(variable), str(HERE / program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if not os.environ.get("HEADWAY_DEBUG") else None,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.greeting = self._read()

    def ask(self, op: str, **values: Any) -> dict[str, Any]:
        """Send one operation and return its answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"op": op, **values}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failure()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _failure(self) -> PeerFailedError:
        status = self._process.wait(timeout=30)
        return PeerFailedError(f"{self._program} ended with status {status}; HEADWAY_DEBUG=1 shows what it printed")

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
