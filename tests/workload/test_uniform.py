"""The source of chance: pinned values, random access, uniformity."""

import hashlib
import struct

from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from scheduler_core.workload.uniform import ONE, Stream


def test_draws_are_blake2b_of_the_counter_keyed_by_seed_and_name() -> None:
    """Written out from the definition: eight little-endian words of BLAKE2b(counter) under the stream's key."""
    key = hashlib.blake2b(b"headway-stream/1|7|prompt", digest_size=32).digest()
    words = struct.unpack("<8Q", hashlib.blake2b((1).to_bytes(8, "little"), key=key, digest_size=64).digest())
    assert [Stream(7, "prompt").at(index) for index in range(8, 16)] == list(words)


def test_pinned_draws() -> None:
    assert [Stream(0, "gap").at(index) for index in range(3)] == [
        13613515592698030429,
        8995956867932172071,
        17584982353853726933,
    ]


@given(st.lists(st.integers(0, 500), min_size=1, max_size=50), st.integers(0, 2**63 - 1))
def test_a_draw_does_not_depend_on_what_was_drawn_before(order: list[int], seed: int) -> None:
    stream = Stream(seed, "x")
    assert [stream.at(index) for index in order] == [Stream(seed, "x").at(index) for index in order]


def test_streams_differ_by_seed_and_by_name() -> None:
    draws = {Stream(seed, name).at(0) for seed in range(50) for name in ("gap", "prompt", "output")}
    assert len(draws) == 150


def test_draws_are_uniform_and_uncorrelated() -> None:
    stream = Stream(3, "uniform")
    draws = [stream.at(index) / ONE for index in range(20_000)]
    assert stats.kstest(draws, "uniform").pvalue > 0.001
    assert abs(stats.pearsonr(draws[:-1], draws[1:]).statistic) < 4 / 20_000**0.5
