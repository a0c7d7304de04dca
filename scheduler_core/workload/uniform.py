"""The only source of chance in a plan: uniform 64-bit integers, a pure function of seed, name and counter.

A counter-based source has no state to get out of step: draw 17 of the stream "prompt" is the same number whatever was
drawn before, in any process and on any machine. Streams with different names are independent, so changing how lengths
are drawn leaves arrivals as they were.
"""

import hashlib
import struct

BITS = 64
ONE = 1 << BITS
"""Certainty: a probability p is written as the integer ``p * ONE``."""

_LANES = struct.Struct("<8Q")


class Stream:
    """Uniform integers in [0, 2**64), numbered from 0: BLAKE2b of the counter, keyed by seed and name."""

    __slots__ = ("_block", "_key", "_lanes")

    def __init__(self, seed: int, name: str) -> None:
        self._key = hashlib.blake2b(f"headway-stream/1|{seed}|{name}".encode(), digest_size=32).digest()
        self._block = -1
        self._lanes: tuple[int, ...] = ()

    def at(self, index: int) -> int:
        """Draw number ``index`` (0 or more)."""
        block = index >> 3
        if block != self._block:
            digest = hashlib.blake2b(block.to_bytes(8, "little"), key=self._key, digest_size=64).digest()
            self._lanes = _LANES.unpack(digest)
            self._block = block
        return self._lanes[index & 7]
