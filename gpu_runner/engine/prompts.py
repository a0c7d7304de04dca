"""Prompt token ids and sampling draws, as pure functions of the arrival plan.

Counter-based: token ``i`` of a stream is a 64-bit mix of (stream key, i), so any slice can be made anywhere, in any
order, with the same result. The mix is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast Splittable
Pseudorandom Number Generators", OOPSLA 2014).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from scheduler_core.types.arrival import PlannedRequest

Tokens = npt.NDArray[np.int64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_PREFIX_STREAM = 0x5052454649584944
_PRIVATE_STREAM = 0x505249564154454B
_DRAW_STREAM = 0x4452415753545245
_MASK = (1 << 64) - 1
_MANTISSA_BITS = 53


def prompt_ids(request: PlannedRequest, *, vocab_size: int, prefix_block_size: int) -> Tokens:
    """The ``request.prompt_tokens`` token ids of a prompt, each in ``[0, vocab_size)``; see `token_ids`."""
    seed, blocks, length = request.seed, request.prefix_blocks, request.prompt_tokens
    return token_ids(seed, blocks, length, vocab_size=vocab_size, block_size=prefix_block_size)


def token_ids(seed: int, blocks: Sequence[int], length: int, *, vocab_size: int, block_size: int) -> Tokens:
    """``length`` token ids, each in ``[0, vocab_size)``.

    Every id of ``blocks`` stands for the same ``block_size`` tokens in every prompt; a last block that reaches beyond
    ``length`` is cut. What follows is private to ``seed`` and the position.
    """
    shared = min(len(blocks) * block_size, length)
    parts = [_stream(_PRIVATE_STREAM, seed, np.arange(shared, length, dtype=np.uint64))]
    if blocks:
        offsets = np.arange(block_size, dtype=np.uint64)
        prefix = np.concatenate([_stream(_PREFIX_STREAM, block, offsets) for block in blocks])
        parts.insert(0, prefix[:shared])
    mixed = np.concatenate(parts) if blocks else parts[0]
    return (mixed % np.uint64(vocab_size)).astype(np.int64)


def uniform_draws(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """One number in [0, 1) for each (request seed, position of the token to be drawn); equal pairs, equal numbers."""
    mixed = _mix(_mix(seeds ^ np.uint64(_DRAW_STREAM)) + positions * _GOLDEN)
    return (mixed >> np.uint64(64 - _MANTISSA_BITS)).astype(np.float64) / 2.0**_MANTISSA_BITS


def _stream(stream: int, key: int, counters: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    return _mix(np.uint64(_mixed((stream ^ key) & _MASK)) + counters * _GOLDEN)


def _mixed(value: int) -> int:
    """`_mix` of one number, in Python's own integers: for one, arrays cost ten times as much."""
    value = (value + int(_GOLDEN)) & _MASK
    value = ((value ^ (value >> 30)) * int(_MIX_1)) & _MASK
    value = ((value ^ (value >> 27)) * int(_MIX_2)) & _MASK
    return value ^ (value >> 31)


def _mix(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    value = value + _GOLDEN
    value = (value ^ (value >> np.uint64(30))) * _MIX_1
    value = (value ^ (value >> np.uint64(27))) * _MIX_2
    return value ^ (value >> np.uint64(31))
