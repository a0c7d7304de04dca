"""Questions to a server about itself."""

from collections.abc import Mapping
from typing import Any

from gpu_runner.server.http.pool import Pool
from gpu_runner.server.http.request import Answer, ask
from gpu_runner.server.observe.page import Page

TIMEOUT_S = 120.0  # vLLM describes its whole machine beside its settings, which takes a busy one long


class Asking:
    """Questions to one server; a page that it does not have is None."""

    def __init__(self, pool: Pool, headers: Mapping[str, str]) -> None:
        self._pool = pool
        self._headers = headers

    async def get(self, path: str) -> Answer | None:
        """The answer to a GET with status 200, else None. `NoAnswerError` when there is no answer at all."""
        answer = await ask(self._pool, "GET", path, headers=self._headers, timeout_s=TIMEOUT_S)
        return answer if answer.status == 200 else None

    async def json(self, path: str) -> Any:
        """As `get`, read as JSON; None when it is none."""
        answer = await self.get(path)
        return None if answer is None else answer.json()

    async def metrics(self) -> Page | None:
        """The metrics page, None where there is none."""
        answer = await self.get("/metrics")
        try:
            return None if answer is None else Page.read(answer.body.decode(errors="replace"))
        except ValueError:
            return None
