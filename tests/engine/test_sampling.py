import math
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from gpu_runner.engine.executor import TorchExecutor
from gpu_runner.engine.prompts import uniform_draws
from gpu_runner.engine.sampling import draw, greedy, in_two_passes
from gpu_runner.engine.settings import Sampling
from scheduler_core.types.errors import InputError
from tests.engine.conftest import settings_for
from tests.engine.playing import Chaos, alone, request

LOGITS = torch.tensor([[math.log(p) for p in (0.1, 0.4, 0.2, 0.3)]])
"""Probabilities of four tokens; best first they are tokens 1, 3, 2, 0 with sums 0.4, 0.7, 0.9, 1.0."""


def drawn(number: float, sampling: Sampling) -> int:
    return int(draw(LOGITS.clone(), torch.tensor([number], dtype=torch.float64), sampling)[0])


def test_greedy_gives_the_best_and_the_distance_to_the_next() -> None:
    """Logits 1, 3, 2.5: token 1, ahead by 0.5."""
    picked = greedy(torch.tensor([[1.0, 3.0, 2.5]]))
    assert picked.tokens.tolist() == [1]
    assert picked.margins.tolist() == [0.5]


def test_the_compiled_pass_gives_what_two_passes_give() -> None:
    """Any width; of equal best ones the first, 0 ahead; the best in the last place, and next to the second."""
    draws = torch.Generator().manual_seed(3)
    for width in (1, 7, 16, 48, 4096):
        logits = torch.randn((9, width), generator=draws)
        logits[0] = 2.5
        logits[1, -1], logits[2, :2] = 50.0, torch.tensor([8.0, 7.0])[: min(2, width)]
        if width > 40:
            logits[3, [5, 37]] = 90.0
        expected, found = in_two_passes(logits.clone()), greedy(logits.clone())
        assert found.tokens.tolist() == expected.tokens.tolist()
        assert found.margins.tolist() == expected.margins.tolist()


@pytest.mark.parametrize(("number", "token"), [(0.0, 1), (0.39, 1), (0.41, 3), (0.69, 3), (0.71, 2), (0.95, 0)])
def test_a_draw_inverts_the_cumulative_probability(number: float, token: int) -> None:
    assert drawn(number, Sampling(temperature=1.0)) == token


@pytest.mark.parametrize(("number", "token"), [(0.0, 1), (0.56, 1), (0.58, 3), (0.999, 3)])
def test_top_k_draws_among_the_best_only(number: float, token: int) -> None:
    """Of the two best, token 1 has 0.4 / 0.7 = 0.571."""
    assert drawn(number, Sampling(temperature=1.0, top_k=2)) == token


@pytest.mark.parametrize(("top_p", "tokens"), [(0.3, {1}), (0.5, {1, 3}), (0.71, {1, 3, 2}), (1.0, {0, 1, 2, 3})])
def test_top_p_keeps_the_fewest_that_reach_it(top_p: float, tokens: set[int]) -> None:
    assert {drawn(i / 1000, Sampling(temperature=1.0, top_p=top_p)) for i in range(1000)} == tokens


def test_a_low_temperature_comes_near_greedy() -> None:
    assert {drawn(i / 100, Sampling(temperature=0.01)) for i in range(100)} == {1}


def test_draws_are_uniform_and_keyed_by_seed_and_position() -> None:
    positions = np.arange(4000, dtype=np.uint64)
    one = uniform_draws(np.full(4000, 7, np.uint64), positions)
    assert one.min() >= 0
    assert one.max() < 1
    assert abs(one.mean() - 0.5) < 0.02
    assert uniform_draws(np.array([7], np.uint64), np.array([123], np.uint64))[0] == one[123]
    assert not np.array_equal(one, uniform_draws(np.full(4000, 8, np.uint64), positions))


def test_drawn_tokens_do_not_depend_on_the_plan(folders: Callable[[str], object]) -> None:
    sampling = Sampling(temperature=0.8, top_k=20, top_p=0.95)
    executor = TorchExecutor(settings_for(str(folders("llama")), sampling=sampling))
    executor.load()
    executor.start()
    shapes = [(20, 10, 1), (9, 10, 2), (30, 6, 3)]
    expected = [alone(executor, request(p, n, seed=seed)).tokens for p, n, seed in shapes]
    for seed in range(3):
        answers = Chaos(executor, random.Random(seed)).serve([request(p, n, seed=s) for p, n, s in shapes])
        assert [answer.tokens for answer in answers] == expected


@pytest.mark.parametrize(
    ("sampling", "where"),
    [
        (Sampling(temperature=-1), "sampling.temperature"),
        (Sampling(top_k=-1), "sampling.top_k"),
        (Sampling(top_p=0), "sampling.top_p"),
    ],
)
def test_a_wrong_sampling_setting_is_refused(sampling: Sampling, where: str) -> None:
    with pytest.raises(InputError) as caught:
        TorchExecutor(settings_for("tiny", sampling=sampling))
    assert caught.value.problems[0].where == where
