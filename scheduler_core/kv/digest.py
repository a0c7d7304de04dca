"""Identity of each full block of a request: equal keys mean equal tokens from the start of the sequence.

vLLM chains hashes, ``digest(i) = H(digest(i - 1), tokens of block i)`` (V-19). Prompts here are described, not spelled
out, so the chain can be exact instead: leading shared blocks intern ``(parent, identities)`` to a small integer, and
the private rest is named by that parent, the request's seed and the block's number. Nothing can collide, and no token
list is kept.
"""

from collections.abc import Hashable

from scheduler_core.request.live import LiveRequest

ROOT = 0


class ChainKeys:
    """Makes the keys of requests for blocks of ``block_size`` tokens, and remembers shared chains."""

    __slots__ = ("_block_size", "_nodes")

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._nodes: dict[tuple[int, int, tuple[int, ...]], int] = {}

    def extend(self, request: LiveRequest, blocks: int) -> list[Hashable]:
        """Make sure that the first ``blocks`` keys of ``request`` exist; returns all it has."""
        keys = request.keys
        while len(keys) < blocks:
            keys.append(self._key(request, len(keys)))
        return keys

    def _key(self, request: LiveRequest, number: int) -> Hashable:
        spec, size = request.spec, self._block_size
        start, end = number * size, (number + 1) * size
        shared = min(len(spec.prefix_blocks) * spec.prefix_block_size, spec.prompt_tokens)
        if end <= shared:
            first, last = start // spec.prefix_block_size, (end - 1) // spec.prefix_block_size
            parent = request.keys[number - 1] if number else ROOT
            assert isinstance(parent, int)  # every block before a shared one is shared
            node = (parent, start % spec.prefix_block_size, spec.prefix_blocks[first : last + 1])
            return self._nodes.setdefault(node, len(self._nodes) + 1)
        boundary = shared // size
        parent = request.keys[boundary - 1] if boundary else ROOT
        # A shared block cut by the end of the block grid still belongs to what makes the private part what it is.
        cut = spec.prefix_blocks[boundary * size // spec.prefix_block_size :] if shared % size else ()
        if end <= spec.prompt_tokens:
            return (parent, cut, spec.seed, number)
        return (parent, cut, spec.seed, number, spec.id)  # holds emitted tokens: its own only
