"""The group-sequential rule spends alpha and no more, and stops when an answer is in."""

import random

import pytest

from scheduler_core.types.errors import InputError
from scheduler_core.verdict.decide import decide
from scheduler_core.verdict.sequential import Further, further, look_at, plan, spent
from tests.verdict.arms import arms, experiment

LOOKS = (5, 10, 20)


def test_levels_add_up_to_alpha() -> None:
    """z = 1.96: at a quarter 2 (1 - Phi(3.92)) = 0.00009, at a half 2 (1 - Phi(2.772)) = 0.00557, at the end 0.05."""
    assert [round(spent(share, 0.05), 5) for share in (0.25, 0.5, 1)] == [0.00009, 0.00557, 0.05]
    looks = plan(LOOKS, 0.05)
    assert sum(look.alpha for look in looks) == pytest.approx(0.05)
    assert [look.pairs for look in looks] == [5, 10, 20]
    assert look_at(LOOKS, 4, 0.05) is None
    assert [look_at(LOOKS, pairs, 0.05).number for pairs in (5, 9, 10, 19, 20, 40)] == [1, 1, 2, 2, 3, 3]  # type: ignore[union-attr]


def test_early_look_needs_strong_evidence() -> None:
    goal = {"looks": [5, 10, 20], "guard": {}}
    weak = decide(experiment(goal=goal), arms((0.80, 0.85, 0.78, 0.84, 0.79))).comparisons[0]
    assert weak.decision == "tune"
    assert weak.next_steps[0].title == "the next declared look, at 10 pairs"
    assert weak.next_steps[0].experiment is not None and weak.next_steps[0].experiment["repeats"] == 10
    strong = decide(experiment(goal=goal), arms((0.70, 0.701, 0.699, 0.70, 0.70))).comparisons[0]
    assert strong.decision == "accept"
    assert any("this is look 1" in condition for condition in strong.conditions)
    assert decide(experiment(goal=goal), arms((0.7,) * 4)).comparisons[0].headline.startswith("tune: the first look")


def test_more_is_run_only_while_it_can_change_the_answer() -> None:
    """Undecided or too few: the next look. Accepted, rejected, missing, or at the last look: nothing."""
    weak = (0.80, 0.85, 0.78, 0.84, 0.79)

    def after(ratios: tuple[float, ...], made: int, **goal: object) -> Further | None:
        spec = experiment(goal={"looks": [5, 10, 20], "guard": {}, **goal})
        return further(spec.goal.looks, made, decide(spec, arms(ratios)))

    both = frozenset({"baseline", "candidate"})
    assert after(weak, 5) == Further(10, both)
    assert after(weak[:4], 5) == Further(10, both), "a run of the first five failed"
    assert after(weak * 2, 10) is None, "accepted at the second look"
    swinging = (0.6, 1.3, 0.8, 1.2, 0.7)
    assert after(swinging * 2, 10) == Further(20, both)
    assert after(swinging * 4, 20) is None
    assert after((0.70, 0.701, 0.699, 0.70, 0.70), 5) is None
    assert after((1.5, 1.501, 1.499, 1.5, 1.5), 5) is None
    assert after(weak, 5, primary="peak_memory_mb") is None, "more pairs bring no missing figure"
    assert after(weak, 5, looks=[]) is None


def test_pairs_beyond_a_look_wait_for_the_next() -> None:
    goal = {"looks": [5, 10, 20], "guard": {}}
    assert decide(experiment(goal=goal), arms((0.7, 0.71, 0.69, 0.7, 0.7, 3, 3))).comparisons[0].pairs == 5


def test_false_alarms_over_all_looks_stay_below_alpha() -> None:
    """100 equal arms, looked at three times each: 5 expected at 5 %, 5 + 3 sqrt(4.75) = 11 allowed."""
    draw = random.Random(3)
    goal = {"looks": [5, 10, 20], "guard": {}}
    spec = experiment(goal=goal)
    alarms = 0
    for _ in range(100):
        runs = arms([draw.lognormvariate(0, 0.05) for _ in range(20)])
        looks = [decide(spec, runs[: 2 * pairs]).comparisons[0].gates[0].label for pairs in LOOKS]
        alarms += any(label in ("better", "worse") for label in looks)
    assert alarms <= 5 + 3 * 2.2


def test_looks_must_rise_from_five() -> None:
    for looks in ([3, 10], [10, 10], [10, 5]):
        with pytest.raises(InputError, match="must rise and begin with 5"):
            experiment(goal={"looks": looks})
