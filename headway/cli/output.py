"""What commands print: results on standard output, everything else on standard error."""

import json
import sys
from typing import Any


def complain(text: str) -> None:
    """An error, for people."""
    print(f"headway: {text}", file=sys.stderr)


def say(text: str) -> None:
    """A word on progress, for people."""
    print(text, file=sys.stderr, flush=True)


def as_json(data: Any) -> None:
    """A result, for programs."""
    print(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))


def table(columns: list[str], rows: list[list[str]]) -> None:
    """A result, for people."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    drawn = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        drawn.add_row(*[Text(cell) for cell in row])  # as text: names must not be read as markup
    if not console.is_terminal:
        console.width = 200
    console.print(drawn)


def duration(seconds: float) -> str:
    """``8 s``, ``2 min 5 s`` or ``1 h 3 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
