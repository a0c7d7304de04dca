"""Identity of each full block of a request: equal keys mean equal tokens from the start of the sequence.

vLLM chains hashes, ``digest(i) = H(digest(i - 1), tokens of block i)`` (V-19). Prompts here are described, not spelled
out, so the chain can be exact instead: leading shared blocks intern ``(parent, identities)`` to a small integer, and
the private rest is named by that parent, the request's seed and the block's number. Nothing can collide, and no token
list is kept. All keys are integers, because they are made by the million: small ones for shared blocks, wide ones for
private blocks, negative ones for blocks with emitted tokens.
"""

from scheduler_core.request.live import LiveRequest
from scheduler_core.request.spec import RequestSpec

ROOT = 0
NUMBER_BITS = 32
ID_BITS = 64
SEED_BITS = 64
PRIVATE = 1 << 64


class ChainKeys:
    """Makes the keys of requests for blocks of ``block_size`` tokens, and remembers shared chains."""

    __slots__ = ("_block_size", "_nodes")

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._nodes: dict[tuple[int, int, tuple[int, ...]], int] = {}

    def extend(self, request: LiveRequest, blocks: int) -> list[int]:
        """Make sure that the first ``blocks`` keys of ``request`` exist; returns all it has."""
        keys = request.keys
        if len(keys) >= blocks:
            return keys
        spec, size = request.spec, self._block_size
        shared = min(len(spec.prefix_blocks) * spec.prefix_block_size, spec.prompt_tokens)
        boundary = shared // size
        while len(keys) < min(blocks, boundary):
            keys.append(self._shared(spec, len(keys), keys[-1] if keys else ROOT))
        if len(keys) >= blocks:
            return keys
        base = self._private(spec, keys[boundary - 1] if boundary else ROOT, boundary, shared)
        prompt = min(blocks, spec.prompt_tokens // size)
        keys.extend([base + number for number in range(len(keys), prompt)])
        if len(keys) < blocks:  # blocks that hold emitted tokens are the request's own
            own = -(((base >> NUMBER_BITS) << ID_BITS | spec.id) << NUMBER_BITS)
            keys.extend([own - number for number in range(len(keys), blocks)])
        return keys

    def names(self, request: LiveRequest) -> tuple[list[int], int]:
        """Keys of the shared blocks of ``request``, and the base that names its private ones."""
        spec = request.spec
        shared = min(len(spec.prefix_blocks) * spec.prefix_block_size, spec.prompt_tokens)
        boundary = shared // self._block_size
        keys = self.extend(request, boundary)[:boundary]
        return keys, self._private(spec, keys[-1] if boundary else ROOT, boundary, shared)

    def _private(self, spec: RequestSpec, parent: int, boundary: int, shared: int) -> int:
        """Base of the keys of private blocks: what is shared before them and the seed, above all shared keys.

        A shared block that the end of the block grid cuts still belongs to what makes the private part what it is.
        """
        if shared % self._block_size:
            cut = spec.prefix_blocks[boundary * self._block_size // spec.prefix_block_size :]
            parent = self._nodes.setdefault((parent, -1, cut), len(self._nodes) + 1)
        return ((PRIVATE | parent) << SEED_BITS | spec.seed) << NUMBER_BITS

    def _shared(self, spec: RequestSpec, number: int, parent: int) -> int:
        start, end = number * self._block_size, (number + 1) * self._block_size
        first, last = start // spec.prefix_block_size, (end - 1) // spec.prefix_block_size
        node = (parent, start % spec.prefix_block_size, spec.prefix_blocks[first : last + 1])
        return self._nodes.setdefault(node, len(self._nodes) + 1)
