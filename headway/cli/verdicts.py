"""A verdict that was made here: printed, and written for other people and programs."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli.output import say

if TYPE_CHECKING:
    from scheduler_core.evidence.schema import RunSummary
    from scheduler_core.verdict.schema import Verdict


def print_verdict(verdict: "Verdict", *, pull_request: bool) -> None:
    """In the words of a terminal, or as Markdown."""
    from scheduler_core.verdict.report.pull_request import pull_request as markdown
    from scheduler_core.verdict.text import render

    print(markdown(verdict) if pull_request else render(verdict), end="" if pull_request else "\n")


def write_reports(verdict: "Verdict", runs: "Sequence[RunSummary]", *, junit: Path | None, report: Path | None) -> None:
    """The files that were asked for."""
    from scheduler_core.files import whole
    from scheduler_core.verdict.report.junit import junit as as_junit
    from scheduler_core.verdict.report.page import experiment_page

    texts = {junit: partial(as_junit, verdict), report: partial(experiment_page, verdict, runs)}
    for path, text in texts.items():
        if path is not None:
            with whole(path) as unfinished:
                unfinished.write_text(text(), encoding="utf-8")
            say(f"wrote {path}")
