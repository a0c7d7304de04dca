"""What arms cost, in every form in which a verdict is shown."""

from scheduler_core.evidence.schema import Absence, Figure, RunSummary
from scheduler_core.verdict.decide import decide
from scheduler_core.verdict.report.page import experiment_page
from scheduler_core.verdict.report.pull_request import pull_request
from scheduler_core.verdict.text import render
from tests.verdict.arms import arms, experiment

WIN = (0.70, 0.71, 0.69, 0.70, 0.70)


def priced(runs: list[RunSummary], *, finished: bool = True) -> list[RunSummary]:
    """The baseline pays 2 and wastes 0.5 of it, 10 a million; the candidate pays 2, wastes 0.1, 8 a million."""
    told = {"baseline": (10.0, 2.0, 0.5), "candidate": (8.0, 2.0, 0.1)}
    names = ("cost_per_million_tokens", "cost_of_devices", "cost_of_failures")
    for run in runs:
        figures = {name: Figure(value=value, unit="currency") for name, value in zip(names, told[run.arm], strict=True)}
        if not finished:
            figures[names[0]] = Figure(value=None, unit="currency", absence=Absence.NOT_APPLICABLE)
        run.metrics.update(figures)
    return runs


def test_costs_of_both_arms_stand_in_every_form() -> None:
    runs = priced(arms(WIN))
    verdict = decide(experiment(), runs)
    lines = verdict.comparisons[0].costs
    assert lines == [
        "a million valid tokens: 10 -> 8 (-20 %)",
        "paid for devices: 2 -> 2 (0 %); of it for requests that did not finish: 0.5 (25 %) -> 0.1 (5 %)",
    ]
    for line in lines:
        assert f"  cost  {line}" in render(verdict)
        assert f"- cost: {line}" in pull_request(verdict)
        assert line.replace(">", "&gt;") in experiment_page(verdict, runs)


def test_no_price_no_cost() -> None:
    assert decide(experiment(), arms(WIN)).comparisons[0].costs == []


def test_where_nothing_finished_a_token_has_no_price() -> None:
    lines = decide(experiment(), priced(arms(WIN), finished=False)).comparisons[0].costs
    assert lines[0] == "a million valid tokens: none finished -> none finished"
