"""Greedy fp32 tokens depend on the prompt alone, whatever plan computes them."""

import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_runner.engine.executor import TorchExecutor
from scheduler_core.types.arrival import PlannedRequest
from tests.engine.families import FAMILIES
from tests.engine.playing import Answer, Chaos, alone, request

Shape = tuple[int, int, int, int]

SHAPES = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 10), st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=5
)
"""Prompt, output, seed and number of shared prefix blocks of each request."""


def planned(shape: Shape) -> PlannedRequest:
    prompt, output, seed, shared = shape
    return request(prompt, output, seed=seed, prefix=tuple(range(shared)))


def solo(executor: TorchExecutor, shape: Shape, known: dict[Shape, Answer]) -> Answer:
    if shape not in known:
        known[shape] = alone(executor, planned(shape))
    return known[shape]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shapes=SHAPES, seed=st.integers(0, 10**6))
def test_no_plan_changes_a_token(shapes: list[Shape], seed: int, loaded: Callable[..., TorchExecutor]) -> None:
    check(loaded("llama"), shapes, seed, {})


@pytest.mark.parametrize("attention", ["auto", "gather"])
@pytest.mark.parametrize("family", FAMILIES)
def test_no_plan_changes_a_token_of_any_family(
    family: str, attention: str, loaded: Callable[..., TorchExecutor]
) -> None:
    executor = loaded(family, attention)
    known: dict[Shape, Answer] = {}
    shapes = [(40, 8, 0, 3), (25, 10, 1, 3), (3, 10, 2, 0), (17, 5, 1, 2)]
    players = [check(executor, shapes, seed, known) for seed in range(3)]
    assert sum(player.preemptions for player in players) > 0
    assert sum(player.hits for player in players) > 0
    assert sum(player.swaps for player in players) > 0
    assert sum(player.rebinds for player in players) > 0


def check(executor: TorchExecutor, shapes: list[Shape], seed: int, known: dict[Shape, Answer]) -> Chaos:
    """Serve ``shapes`` by random plans and compare each answer with that of the request served alone."""
    expected = [solo(executor, shape, known) for shape in shapes]
    player = Chaos(executor, random.Random(seed), cancel_share=0.01)
    for shape, mine, theirs in zip(shapes, player.serve([planned(s) for s in shapes]), expected, strict=True):
        if len(mine.tokens) < len(theirs.tokens):  # cancelled: what it had is the beginning of the same answer
            theirs = Answer(theirs.tokens[: len(mine.tokens)], {tie for tie in theirs.ties if tie < len(mine.tokens)})
        assert mine.agrees(theirs), (shape, mine, theirs)
    return player
