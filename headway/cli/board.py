"""The live table of an experiment in the terminal."""

import sys
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headway.cli.output import duration
from headway.follow import View

_MARKS = {
    "queued": ("·", "dim"),
    "dispatched": ("·", "dim"),
    "starting": ("◌", "cyan"),
    "running": ("●", "cyan"),
    "finalising": ("●", "cyan"),
    "succeeded": ("✓", "green"),
    "failed": ("✗", "red"),
    "cancelled": ("-", "yellow"),
    "lost": ("?", "red"),
}


class Board:
    """Arms down, repeats across; on something other than a terminal, a line whenever a run ends."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, transient=True, refresh_per_second=4) if sys.stderr.isatty() else None
        self._told = ""

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, view: View) -> None:
        """Show how things stand."""
        line = summary_line(view)
        if self._live is not None:
            self._live.update(Group(_table(view), Text(line)))
        elif not view.silent_s and (key := f"{view.runs_ended}{view.experiment['status']}") != self._told:
            self._told = key
            print(line, file=sys.stderr, flush=True)


def summary_line(view: View) -> str:
    """``demo: running, 7 of 15 runs ended, about 1 min 20 s left``."""
    if view.silent_s:
        return f"the server has not answered for {duration(view.silent_s)}; trying on"
    experiment = view.experiment
    left = "" if view.eta_s is None else f", about {duration(view.eta_s)} left"
    line = f"{experiment['name']}: {experiment['status']}, {view.runs_ended} of {len(view.runs)} runs ended{left}"
    waiting = next((run["reason"] for run in view.runs if run["state"] in ("failed", "lost") and run["reason"]), "")
    return f"{line} (first failure: {waiting})" if waiting else line


def _table(view: View) -> Table:
    arms = list(dict.fromkeys(run["arm"] for run in view.runs))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("arm")
    table.add_column("runs")
    table.add_column("now")
    for arm in arms:
        runs = sorted((run for run in view.runs if run["arm"] == arm), key=lambda run: run["repeat"])
        marks = Text(" ").join(Text(*_MARKS.get(run["state"], ("?", ""))) for run in runs)
        table.add_row(Text(str(arm)), marks, Text(_now(runs)))
    return table


def _now(runs: list[dict[str, object]]) -> str:
    for run in runs:
        if run["state"] in ("starting", "running", "finalising"):
            if not run["total"] or run["state"] != "running":
                return str(run["state"])
            eta = run["eta_s"]
            left = f", {duration(eta)} left" if isinstance(eta, int | float) else ""
            return f"{run['done']} of {run['total']} requests{left}"
    return ""
