"""What the person at the terminal sees of the stack: one line a step, with its time."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


def say(text: str) -> None:
    """A line of its own."""
    print(text, flush=True)


def complain(text: str) -> None:
    """One line of error."""
    print(f"headway: {text}", file=sys.stderr, flush=True)


@contextmanager
def step(name: str) -> Iterator[None]:
    """Show that ``name`` is under way, and how long it took; on a terminal the seconds count up meanwhile."""
    began = time.monotonic()
    ended = threading.Event()
    live = sys.stdout.isatty()
    if live:
        _ticker(name, began, ended)
    outcome = "failed"
    try:
        yield
        outcome = "ready"
    finally:
        ended.set()
        took = time.monotonic() - began
        print(f"{chr(13) if live else ''}  {name:<14} {outcome:<10} {took:5.1f} s", flush=True)


def _ticker(name: str, began: float, ended: threading.Event) -> None:
    def tick() -> None:
        while not ended.wait(0.5):
            print(f"\r  {name:<14} {'starting':<10} {time.monotonic() - began:5.1f} s", end="", flush=True)

    threading.Thread(target=tick, daemon=True).start()
