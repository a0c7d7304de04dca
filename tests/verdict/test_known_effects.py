"""Known effects under noise, one trial each; ``bench.verdict`` counts right answers over many."""

import pytest

from bench.cases.effects import EFFECTS, Effect, answer, experiment
from bench.verdict import is_right


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda effect: effect.name)
def test_right_answer(effect: Effect) -> None:
    found = answer(experiment(effect), effect, trial=0)
    assert is_right(effect, found), found.headline
