"""Progress on standard error: a moving bar on a terminal, a line now and then elsewhere."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from headway.play import Step
from scheduler_core.spec.job import ProgressMessage

_LINE_EVERY_S = 10.0


class _Bar:
    """One bar, or lines where there is no terminal."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._bar: Progress | None = None
        self._last_line = 0.0
        if sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TaskProgressColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(title, total=None)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _show(self, text: str, done: float, total: float, *, always: bool) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=text, completed=done, total=total)
            return
        now = time.monotonic()
        if always or now - self._last_line > _LINE_EVERY_S:
            self._last_line = now
            print(text, file=sys.stderr, flush=True)


class PlayProgress(_Bar):
    """Runs of a local play."""

    def __call__(self, step: Step) -> None:
        text = (
            f"{self._title}: run {step.number} of {step.total}, {step.words()}, {step.done} of {step.requests} requests"
        )
        done = step.number - 1 + step.done / max(step.requests, 1)
        self._show(text, done, step.total, always=step.done == 0)

    def policies(self, done: int, total: int) -> None:
        """Policies of a search played so far."""
        self._show(f"{self._title}: {done} of at most {total} policies", done, total, always=done == total)


class CalibrationProgress(_Bar):
    """Steps of a calibration."""

    def __init__(self) -> None:
        super().__init__("Calibrating")

    def __call__(self, message: ProgressMessage) -> None:
        text = f"Calibrating: {message.done} of {message.total} measurements"
        self._show(text, message.done, message.total, always=message.done in (0, message.total))
