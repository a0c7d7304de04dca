"""A verdict that was made here: printed, and written for other people and programs."""

import json
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.cli.formulas import print_formulas
from headway.cli.output import as_json, say
from scheduler_core.types.errors import InputError, Problem

if TYPE_CHECKING:
    from scheduler_core.evidence.schema import RunSummary
    from scheduler_core.verdict.schema import Verdict


@dataclass(frozen=True)
class Telling:
    """How a verdict is told: files beside it, another tool's formulas, as a pull request's text or as JSON."""

    junit: Path | None = None
    report: Path | None = None
    formulas: str | None = None
    _: KW_ONLY
    pull_request: bool = False
    as_data: bool = False

    def check(self) -> None:
        """Refuse what cannot be told before anything is played: `InputError`."""
        if self.formulas is not None:
            from scheduler_core.evidence.formulas.side_by_side import known_tool

            known_tool(self.formulas)


def tell(
    verdict: "Verdict", runs: "Sequence[RunSummary]", telling: Telling, as_data: Callable[[], dict[str, Any]]
) -> None:
    """Write and print ``verdict`` on ``runs``; ``as_data`` is asked for where it is told as JSON."""
    for path, kind in ((telling.junit, ".xml"), (telling.report, ".html")):
        if path is not None:
            _write(path, kind, verdict, runs)
    if telling.as_data:
        as_json(as_data())
        return
    print_verdict(verdict, pull_request=telling.pull_request)
    if telling.formulas is not None:
        from scheduler_core.evidence.formulas.side_by_side import by_arm, side_by_side

        print()
        print_formulas(side_by_side(by_arm(runs), telling.formulas))


def print_verdict(verdict: "Verdict", *, pull_request: bool) -> None:
    """In the words of a terminal, or as Markdown."""
    from scheduler_core.verdict.report.pull_request import pull_request as markdown
    from scheduler_core.verdict.text import render

    print(markdown(verdict) if pull_request else render(verdict), end="" if pull_request else "\n")


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
