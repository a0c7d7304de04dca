"""A verdict that was made here: printed, and written for other people and programs."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli.output import say
from scheduler_core.types.errors import InputError, Problem

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
    for path, kind in ((junit, ".xml"), (report, ".html")):
        if path is not None:
            _write(path, kind, verdict, runs)


def write_by_ending(paths: Sequence[Path], verdict: "Verdict", runs: "Sequence[RunSummary]") -> None:
    """Files whose ending says what goes into them; `InputError` for an ending that says nothing."""
    for path in paths:
        _write(path, path.suffix, verdict, runs)


def _write(path: Path, kind: str, verdict: "Verdict", runs: "Sequence[RunSummary]") -> None:
    from scheduler_core.files import whole
    from scheduler_core.verdict.report.junit import junit
    from scheduler_core.verdict.report.page import experiment_page
    from scheduler_core.verdict.report.prometheus import prometheus
    from scheduler_core.verdict.report.pull_request import pull_request

    texts: dict[str, Callable[[], str]] = {
        ".xml": partial(junit, verdict),
        ".html": partial(experiment_page, verdict, runs),
        ".prom": partial(prometheus, verdict, runs),
        ".md": partial(pull_request, verdict),
        ".json": lambda: json.dumps({"verdict": verdict.canonical(), "runs": [run.canonical() for run in runs]}),
    }
    if kind not in texts:
        raise InputError([Problem(str(path), f"its ending says nothing; write one of {', '.join(texts)}")])
    with whole(path) as unfinished:
        unfinished.write_text(texts[kind](), encoding="utf-8")
    say(f"wrote {path}")
