"""Known effects under noise, one trial each; ``bench.verdict`` counts right answers over many."""

from dataclasses import replace

import pytest

from bench.cases.effects import EFFECTS, Case, Effect, Trials
from bench.verdict import AA, is_right


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda effect: effect.name)
def test_right_answer(effect: Effect) -> None:
    found = Trials().answer(Case(effect), trial=0)
    assert is_right(effect, found), found.headline


def test_a_against_a_twenty_times() -> None:
    """At 5 % four labels or more of twenty have a chance of 1.6 % if the test is honest, so at most three are allowed.

    Each comparison has runs of its own: five pairs of one policy, every run with a noise seed of its own.
    """
    same = replace(AA, workload={"requests": 25})
    case, trials = Case(same), Trials()
    labels = [trials.answer(case, trial).gates[0].label for trial in range(20)]
    assert sum(label != "same" for label in labels) <= 3, labels
