"""Following an experiment on a server to its end, from the state the server stores."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from headway.client import Client, UnreachableError

ENDED = ("decided", "failed", "cancelled")
RUN_ENDED = ("succeeded", "failed", "cancelled", "lost")
POLL_S = 1.0
GIVE_UP_AFTER_S = 300.0


@dataclass(frozen=True)
class View:
    """An experiment as last read; ``silent_s`` is how long the server has not answered since then."""

    experiment: dict[str, Any]
    silent_s: float = 0.0

    @property
    def runs(self) -> list[dict[str, Any]]:
        """Its runs in the order they are played."""
        return list(self.experiment["runs"])

    @property
    def ended(self) -> bool:
        """Whether nothing more will change by itself."""
        return self.experiment["status"] in ENDED

    @property
    def runs_ended(self) -> int:
        """Runs that have ended, however."""
        return sum(run["state"] in RUN_ENDED for run in self.runs)

    @property
    def eta_s(self) -> float | None:
        """Expected seconds to the end, from the time between the ends of runs so far; None while unknown."""
        seconds = [_duration_s(run) for run in self.runs]
        known = [value for value in seconds if value is not None]
        if not known or self.ended:
            return None
        waiting = sum(run["state"] not in RUN_ENDED and run["started_at"] is None for run in self.runs)
        current = sum(run["eta_s"] or 0.0 for run in self.runs if run["state"] not in RUN_ENDED)
        return waiting * sum(known) / len(known) + current


def follow(
    client: Client, experiment_id: str, *, sleep: Callable[[float], None] = time.sleep, poll_s: float = POLL_S
) -> Iterator[View]:
    """A `View` at every poll, the last of them ended. A server that restarts meanwhile is waited for.

    Raises:
        UnreachableError: no answer for `GIVE_UP_AFTER_S`.
    """
    view = View(client.get(f"/experiments/{experiment_id}"))
    silent_since: float | None = None
    while True:
        yield view
        if view.ended and not view.silent_s:
            return
        sleep(poll_s)
        try:
            view = View(client.get(f"/experiments/{experiment_id}"))
            silent_since = None
        except UnreachableError:
            now = time.monotonic()
            silent_since = silent_since or now
            if now - silent_since > GIVE_UP_AFTER_S:
                raise
            view = View(view.experiment, silent_s=max(now - silent_since, poll_s))


def _duration_s(run: dict[str, Any]) -> float | None:
    from datetime import datetime

    if run["state"] not in RUN_ENDED or not run["started_at"] or not run["finished_at"]:
        return None
    return (datetime.fromisoformat(run["finished_at"]) - datetime.fromisoformat(run["started_at"])).total_seconds()
