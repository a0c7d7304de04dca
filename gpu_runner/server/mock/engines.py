"""Where the mock's tokens come from: a script for each answer here, a modelled instance in `scheduled`."""

import asyncio
from typing import Protocol

from gpu_runner.server.mock.behaviour import Scripted
from gpu_runner.server.mock.stats import Stats
from gpu_runner.server.mock.stream import Answer


class Engine(Protocol):
    """Gives answers their tokens."""

    def submit(self, answer: Answer) -> None:
        """Begin to answer."""

    def leave(self, answer: Answer) -> None:
        """The answer is over, whatever its reason."""

    def reset_cache(self) -> None:
        """Forget cached prefixes."""


class ScriptedEngine:
    """Each answer by its own clock, on absolute times, so that lateness never adds up."""

    def __init__(self, script: Scripted, stats: Stats) -> None:
        self._script = script
        self._stats = stats

    def submit(self, answer: Answer) -> None:
        self._stats.running += 1
        self._stats.looked_up(len(answer.question.prompt), 0)
        loop = asyncio.get_running_loop()
        start = loop.time() + self._script.ttft_ms / 1e3
        loop.call_at(start, self._chunk, answer, start, 0)

    def leave(self, answer: Answer) -> None:
        self._stats.running -= 1

    def reset_cache(self) -> None:
        return

    def _chunk(self, answer: Answer, start: float, number: int) -> None:
        answer.tokens(1 if number == 0 else self._script.tokens_per_chunk)
        if not answer.over:
            due = start + (number + 1) * self._script.gap_ms * self._script.tokens_per_chunk / 1e3
            asyncio.get_running_loop().call_at(due, self._chunk, answer, start, number + 1)
