"""Greedy tokens depend on the prompt alone, whatever plan computes them: in fp32 to the token, in bf16 within rounding.

Drawn are the requests (batch mates, shared beginnings), and by the plans chunk sizes, batches, preemptions, swaps,
exchanges of equal blocks and cancels.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_runner.engine.executor import TorchExecutor
from gpu_runner.engine.sampling import TIE_TOLERANCE
from scheduler_core.types.arrival import PlannedRequest
from tests.engine.conftest import settings_for
from tests.engine.families import FAMILIES
from tests.engine.playing import Answer, Chaos, alone, request

Shape = tuple[int, int, int, int]

SHAPES = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 10), st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=5
)
"""Prompt, output, seed and number of shared prefix blocks of each request."""

CHOICES = st.randoms(use_true_random=False)
CANCEL_SHARES = st.sampled_from([0.0, 0.02, 0.1])

drawn = settings(
    max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
)

_ALONE: dict[TorchExecutor, dict[Shape, Answer]] = defaultdict(dict)


def planned(shape: Shape) -> PlannedRequest:
    prompt, output, seed, shared = shape
    return request(prompt, output, seed=seed, prefix=tuple(range(shared)))


def solo(executor: TorchExecutor, shape: Shape) -> Answer:
    known = _ALONE[executor]
    if shape not in known:
        known[shape] = alone(executor, planned(shape))
    return known[shape]


def play(
    executor: TorchExecutor, shapes: list[Shape], choices: random.Random, cancel_share: float
) -> tuple[Chaos, list[tuple[Answer, Answer]]]:
    """Serve ``shapes`` by drawn plans; beside each answer that of the request served alone, or as much of it as a
    cancel left.
    """
    expected = [solo(executor, shape) for shape in shapes]
    player = Chaos(executor, choices, cancel_share=cancel_share)
    answers = player.serve([planned(shape) for shape in shapes])
    return player, [(mine, theirs.begin(len(mine.tokens))) for mine, theirs in zip(answers, expected, strict=True)]


def check(executor: TorchExecutor, shapes: list[Shape], choices: random.Random, cancel_share: float) -> Chaos:
    player, answers = play(executor, shapes, choices, cancel_share)
    for shape, (mine, theirs) in zip(shapes, answers, strict=True):
        assert mine.agrees(theirs), (shape, mine, theirs)
    return player


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shapes=SHAPES, seed=st.integers(0, 10**6))
def test_no_plan_changes_a_token(shapes: list[Shape], seed: int, loaded: Callable[..., TorchExecutor]) -> None:
    check(loaded("llama"), shapes, random.Random(seed), 0.01)


@pytest.mark.parametrize("family", FAMILIES)
@drawn
@given(shapes=SHAPES, choices=CHOICES, cancel_share=CANCEL_SHARES)
def test_no_drawn_plan_changes_a_token_of_any_family(
    family: str,
    shapes: list[Shape],
    choices: random.Random,
    cancel_share: float,
    loaded: Callable[..., TorchExecutor],
) -> None:
    check(loaded(family), shapes, choices, cancel_share)


@pytest.mark.parametrize("attention", ["auto", "gather"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_kind_of_plan_is_met_by_every_family(
    family: str, attention: str, loaded: Callable[..., TorchExecutor]
) -> None:
    executor = loaded(family, attention)
    shapes = [(40, 8, 0, 3), (25, 10, 1, 3), (3, 10, 2, 0), (17, 5, 1, 2)]
    players = [check(executor, shapes, random.Random(seed), 0.03) for seed in range(4)]
    for what in ("preemptions", "hits", "swaps", "rebinds", "cancels"):
        assert sum(getattr(player, what) for player in players) > 0, what


# --- half precision ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def in_bf16(folders: Callable[[str], Path]) -> Iterator[Callable[[str], TorchExecutor]]:
    """Engines in bf16 that tell the distance of the two best logits of every token.

    Weights are seeded ones, whose logits have a standard deviation of 1: the scale for which the tolerance is declared.
    """
    made: dict[str, TorchExecutor] = {}

    def executor(family: str) -> TorchExecutor:
        if family not in made:
            made[family] = TorchExecutor(settings_for(f"random:{folders(family)}", dtype="bfloat16"))
            made[family].load()
            made[family].start()
            made[family]._tolerance = float("inf")
        return made[family]

    yield executor
    made.clear()


@pytest.mark.parametrize("family", FAMILIES)
@drawn
@given(shapes=SHAPES, choices=CHOICES, cancel_share=CANCEL_SHARES)
def test_in_bf16_no_drawn_plan_moves_a_logit_beyond_rounding(
    family: str,
    shapes: list[Shape],
    choices: random.Random,
    cancel_share: float,
    in_bf16: Callable[[str], TorchExecutor],
) -> None:
    """Token by token the distance of the two best logits is within the declared tolerance of what it is alone; where
    the tokens differ it was a tie, and what follows may.
    """
    _, answers = play(in_bf16(family), shapes, choices, cancel_share)
    for mine, theirs in answers:
        for place, (token, other) in enumerate(zip(mine.tokens, theirs.tokens, strict=True)):
            if token != other:
                assert max(mine.ties[place], theirs.ties[place]) < TIE_TOLERANCE["bfloat16"]
                break
            assert abs(mine.ties[place] - theirs.ties[place]) < TIE_TOLERANCE["bfloat16"]
