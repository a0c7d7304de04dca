"""Prompt token ids and sampling draws, as pure functions of the arrival plan.

Counter-based: token ``i`` of a stream is a 64-bit mix of (stream key, i), so any slice can be made anywhere, in any
order, with the same result. The mix is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast Splittable
Pseudorandom Number Generators", OOPSLA 2014).
"""

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
    """The ``request.prompt_tokens`` token ids of a prompt, each in ``[0, vocab_size)``.

    Every id of ``prefix_blocks`` stands for the same ``prefix_block_size`` tokens in every prompt; a last block that
    reaches beyond the prompt is cut. What follows is private to ``request.seed`` and the position.
    """
    shared = min(len(request.prefix_blocks) * prefix_block_size, request.prompt_tokens)
    offsets = np.arange(prefix_block_size, dtype=np.uint64)
    parts = [_stream(_PREFIX_STREAM, block, offsets) for block in request.prefix_blocks]
    prefix = np.concatenate(parts)[:shared] if parts else np.empty(0, np.uint64)
    private = _stream(_PRIVATE_STREAM, request.seed, np.arange(shared, request.prompt_tokens, dtype=np.uint64))
    return (np.concatenate((prefix, private)) % np.uint64(vocab_size)).astype(np.int64)


def uniform_draws(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """One number in [0, 1) for each (request seed, position of the token to be drawn); equal pairs, equal numbers."""
    mixed = _mix(_mix(seeds ^ np.uint64(_DRAW_STREAM)) + positions * _GOLDEN)
    return (mixed >> np.uint64(64 - _MANTISSA_BITS)).astype(np.float64) / 2.0**_MANTISSA_BITS


def _stream(stream: int, key: int, counters: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    start = np.uint64(int(_mix(np.array([(stream ^ key) & _MASK], np.uint64))[0]))
    return _mix(start + counters * _GOLDEN)


def _mix(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    value = value + _GOLDEN
    value = (value ^ (value >> np.uint64(30))) * _MIX_1
    value = (value ^ (value >> np.uint64(27))) * _MIX_2
    return value ^ (value >> np.uint64(31))
