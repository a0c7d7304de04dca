"""One metric source, looked at again and again: levels as they are, totals as growth since the first look."""

import time
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import quote

from gpu_runner.server.client.events import Clock
from gpu_runner.server.http.pool import Origin, Pool
from gpu_runner.server.http.request import NoAnswerError, ask
from gpu_runner.server.observe.mapping import MetricMap, map_of, read_levels, read_totals
from gpu_runner.server.observe.page import Page
from scheduler_core.spec.server import MetricSource
from scheduler_core.types.client_records import Observed

TIMEOUT_S = 5.0


class Source(Protocol):
    """What can be looked at beside a run."""

    name: str

    async def look(self, clock: Clock) -> Observed:
        """One look; a failed one says why and has no values."""

    def close(self) -> None:
        """Let go of it."""


@dataclass
class Growth:
    """Counters as growth since the first look, also over a restart of the server, which begins again at 0."""

    _first: dict[str, float] = field(default_factory=dict)
    _last: dict[str, float] = field(default_factory=dict)
    _grown: dict[str, float] = field(default_factory=dict)

    def take(self, totals: dict[str, float]) -> tuple[dict[str, float], bool]:
        """The growth of each total, and whether one of them went back since the look before."""
        restarted = any(value < self._last.get(name, value) for name, value in totals.items())
        for name, value in totals.items():
            before = self._last.get(name)
            if before is None:
                step = 0.0
            elif restarted:
                step = value  # what was counted between the last look and the restart is lost
            else:
                step = value - before
            self._grown[name] = self._grown.get(name, 0.0) + step
            self._last[name] = value
        return {name: self._grown[name] for name in totals}, restarted


class LookedAt:
    """A source under observation."""

    def __init__(self, spec: MetricSource, origin: Origin) -> None:
        self.spec = spec
        self.name = spec.url + spec.query
        self.map: MetricMap | None = None
        self._pool = Pool(origin, limit=2)
        self._growth = Growth()

    async def look(self, clock: Clock) -> Observed:
        """One look; a failed one says why and has no values."""
        try:
            page = await self.page()
        except (NoAnswerError, ValueError) as error:
            return self._observed(clock, {}, problem=str(error) or type(error).__name__)
        self.map = map_of(page) or self.map
        if self.map is None:
            return self._observed(clock, {}, problem="its metrics are of no server that is known here")
        grown, restarted = self._growth.take(read_totals(self.map, page))
        return self._observed(clock, {**read_levels(self.map, page), **grown}, restarted=restarted)

    async def page(self) -> Page:
        """The source's page now.

        Raises:
            NoAnswerError: it did not answer, or not with a page.
            ValueError: what it answered is no metrics page.
        """
        answer = await ask(self._pool, "GET", self._path(), timeout_s=TIMEOUT_S)
        if answer.status != 200:
            raise NoAnswerError(f"status {answer.status} for {self._path()}")
        if not self.spec.query:
            return Page.read(answer.body.decode(errors="replace"))
        return _page_of_query(answer.json())

    def close(self) -> None:
        """End the connections."""
        self._pool.close()

    def _path(self) -> str:
        if not self.spec.query:
            return "/metrics"
        return f"/api/v1/query?query={quote(self.spec.query)}"

    def _observed(
        self, clock: Clock, values: dict[str, float], *, restarted: bool = False, problem: str = ""
    ) -> Observed:
        at = clock.of(time.monotonic_ns())
        return Observed(at, self.name, self.spec.role, self.spec.pool, values, restarted, problem)


def _page_of_query(data: object) -> Page:
    """A Prometheus server's instant vector as a page."""
    page = Page()
    result = data.get("data", {}).get("result", []) if isinstance(data, dict) else []
    for item in result:
        labels = dict(item["metric"])
        name = labels.pop("__name__", "")
        page.samples.setdefault(name, []).append((labels, float(item["value"][1])))
    if not page.samples:
        raise ValueError("the query found nothing")
    return page
