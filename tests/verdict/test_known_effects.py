"""Known effects under noise, one trial each; ``bench.verdict`` counts right answers over many."""

import pytest

from bench.cases.effects import EFFECTS, Effect, experiment, runs
from bench.verdict import is_right
from scheduler_core.verdict.decide import decide


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda effect: effect.name)
def test_right_answer(effect: Effect) -> None:
    spec = experiment(effect)
    answer = decide(spec, runs(spec, effect, trial=0)).comparisons[0]
    assert is_right(effect, answer), answer.headline
