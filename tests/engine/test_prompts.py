from hypothesis import given
from hypothesis import strategies as st

from gpu_runner.engine.prompts import prompt_ids
from tests.engine.playing import request


def ids(prompt: int, *, seed: int = 0, prefix: tuple[int, ...] = (), vocab: int = 4096, block: int = 4) -> list[int]:
    planned = request(prompt, 1, seed=seed, prefix=prefix)
    tokens: list[int] = prompt_ids(planned, vocab_size=vocab, prefix_block_size=block).tolist()
    return tokens


def test_golden_prompts_never_change() -> None:
    """Recorded figures: a change here would make every stored run incomparable with new ones."""
    assert ids(6, seed=1) == [3665, 1075, 3834, 1968, 805, 389]
    assert ids(6, seed=1, prefix=(7,)) == [3290, 63, 2746, 1005, 805, 389]


def test_equal_leading_ids_mean_equal_leading_tokens() -> None:
    one, two = ids(10, seed=1, prefix=(5, 6)), ids(12, seed=2, prefix=(5, 9))
    assert one[:4] == two[:4]
    assert one[4:8] != two[4:8]


def test_the_private_part_depends_on_seed_and_position_only() -> None:
    assert ids(20, seed=3)[:10] == ids(10, seed=3)
    assert ids(20, seed=3, prefix=(1,))[4:] == ids(20, seed=3)[4:]
    assert ids(20, seed=3) != ids(20, seed=4)


def test_a_prefix_longer_than_the_prompt_is_cut() -> None:
    """Trace formats give the last, partly filled block an id too: 3 blocks of 4 tokens over a prompt of 10."""
    assert ids(10, prefix=(1, 2, 3)) == ids(12, prefix=(1, 2, 3))[:10]


@given(prompt=st.integers(1, 50), seed=st.integers(0, 2**63 - 1), prefix=st.lists(st.integers(0, 2**62), max_size=5))
def test_every_id_is_inside_the_vocabulary(prompt: int, seed: int, prefix: list[int]) -> None:
    tokens = ids(prompt, seed=seed, prefix=tuple(prefix), vocab=96)
    assert len(tokens) == prompt
    assert all(0 <= token < 96 for token in tokens)
