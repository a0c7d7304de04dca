"""Which steps to measure: a grid over decode batch and context, prompt lengths, and mixes of both."""

from dataclasses import dataclass

_BATCHES = (1, 64, 8, 24, 4, 2, 48, 16, 96, 32, 3, 6, 12, 128)
_CONTEXTS = (256, 32, 1024, 512, 128, 2048, 3072)
_PROMPTS = (128, 512, 32, 1024, 256, 8, 64, 2048, 192, 16, 96, 384, 768, 1536)
_CHUNKS = ((256, 256), (768, 128), (1536, 512), (384, 64))
_MIXES = ((8, 256, 128), (32, 256, 256), (2, 128, 192), (16, 512, 512), (48, 128, 64), (4, 256, 64), (4, 1024, 1024))
_DECODE_STEPS = 4
WARMING_STEPS = 3
"""Steps before the measured ones: in service a decode follows others like it."""


@dataclass(frozen=True, slots=True)
class Point:
    """A step to measure: ``batch`` requests decode at about ``context`` while ``chunk`` prompt tokens are computed.

    The chunk starts at position ``history``. A point is measured ``steps`` times in a row.
    """

    batch: int = 0
    context: int = 0
    chunk: int = 0
    history: int = 0
    steps: int = 1

    def blocks(self, block_size: int) -> int:
        """KV blocks that its requests hold."""
        per_decode = -(-(self.context + self.steps + WARMING_STEPS) // block_size)
        return self.batch * per_decode + -(-(self.history + self.chunk) // block_size)

    @property
    def longest(self) -> int:
        """Positions of its longest request."""
        return max(self.context + self.steps + WARMING_STEPS, self.history + self.chunk)


def points(*, kv_blocks: int, block_size: int, model_length: int) -> list[Point]:
    """Every point that fits the pool, most telling first: whoever has little time measures a beginning of the list."""
    decodes = [
        Point(batch=batch, context=context, steps=_DECODE_STEPS)
        for rank in range(len(_BATCHES) + len(_CONTEXTS))
        for place, context in enumerate(_CONTEXTS)
        if 0 <= (at := rank - place) < len(_BATCHES)
        for batch in (_BATCHES[at],)
    ]
    prompts = [Point(chunk=length) for length in _PROMPTS]
    prompts += [Point(chunk=length, history=history) for history, length in _CHUNKS]
    mixes = [Point(batch=batch, context=context, chunk=chunk) for batch, context, chunk in _MIXES]
    woven = _weave((1.0, decodes), (2.0, prompts), (3.0, mixes))
    return [p for p in woven if p.blocks(block_size) <= kv_blocks and p.longest <= model_length]


def _weave(*lists: tuple[float, list[Point]]) -> list[Point]:
    """The lists merged, each with the distance of its points: there are far more decodes than prompts, and a beginning
    of all has to tell of both.
    """
    placed = [((index + 0.5) * distance, item) for distance, items in lists for index, item in enumerate(items)]
    return [item for _place, item in sorted(placed, key=lambda pair: pair[0])]
