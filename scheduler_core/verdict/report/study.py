"""A study as one self-contained page: what each stage found, what a search found, and every verdict."""

import html
from collections.abc import Sequence

from scheduler_core.evidence.metrics.cost import COST
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.verdict.report.curves import Axes, Point, curves
from scheduler_core.verdict.report.page import page, table, verdict_parts
from scheduler_core.verdict.schema import Verdict
from scheduler_core.verdict.search import SearchResult, Trial
from scheduler_core.verdict.titles import metric_title, metric_unit
from scheduler_core.verdict.wording import digits


def study_page(
    name: str,
    lines: Sequence[str],
    verdicts: Sequence[Verdict],
    runs: Sequence[RunSummary],
    search: SearchResult | None = None,
) -> str:
    """The page: ``lines`` of a guided plan's report first, then a search, then the verdicts with their runs."""
    body = [f"<p>{html.escape(line)}</p>" for line in lines]
    if search is not None:
        body.append(f"<h2>Search</h2><p>{html.escape(search.sentence)}</p>{search_charts(search)}")
        body.append(table(("policy", *search.objectives, ""), search_rows(search)))
    for verdict in verdicts:
        body += [f"<h2>{html.escape(verdict.experiment)}</h2>", *verdict_parts(verdict)]
    body.append(f"<p>{len(runs)} runs, all audited.</p>" if runs and all(run.audit.passed for run in runs) else "")
    return page(name, body)


def search_charts(search: SearchResult) -> str:
    """Every policy by cost against each other objective; what no other beats stands out."""
    charts = []
    for name in search.objectives:
        if name != COST:
            reading = f"{metric_title(name)}, {metric_unit(name)}"
            axes = Axes(f"{reading}, against cost", "cost per million valid tokens", reading, joined=False)
            groups = {"the base": [0], "beaten by none": search.front, "beaten": _beaten(search)}
            charts.append(curves(axes, {label: _points(search, numbers, name) for label, numbers in groups.items()}))
    return "".join(charts)


def search_rows(search: SearchResult) -> list[tuple[str, ...]]:
    """Front first, then the others: what was chosen, the figures, and what it is."""
    by_number = {trial.number: trial for trial in search.trials}
    order = [*search.best, *(number for number in search.front if number not in search.best)]
    order += [number for number in by_number if number not in search.front]
    return [_row(search, by_number[number]) for number in order]


def _row(search: SearchResult, trial: Trial) -> tuple[str, ...]:
    chosen = ", ".join(f"{name} {value}" for name, value in trial.choice.items()) or "the base"
    figures = [digits(trial.figures[name]) if name in trial.figures else "" for name in search.objectives]
    if trial.failure:
        return (chosen, *figures, trial.failure)
    place = "best" if trial.number in search.best else "beaten by none" if trial.number in search.front else ""
    return (chosen, *figures, place)


def _beaten(search: SearchResult) -> list[int]:
    return [trial.number for trial in search.trials if trial.number and trial.number not in search.front]


def _points(search: SearchResult, numbers: Sequence[int], name: str) -> list[Point]:
    chosen = [trial for trial in search.trials if trial.number in numbers]
    return [(trial.figures[COST], trial.figures[name]) for trial in chosen if {COST, name} <= trial.figures.keys()]
