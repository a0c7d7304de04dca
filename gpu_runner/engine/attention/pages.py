"""KV pages by position, the layout that PyTorch, Triton and libraries of paged kernels share."""

import torch

from gpu_runner.engine.attention.base import DeviceBatch, PoolShape
from gpu_runner.engine.model.rope import rotate_


class PositionPages:
    """Pages ``[blocks, block_size, kv_heads, head_dim]``, one tensor of keys and one of values per layer.

    ``spare`` more blocks lie behind those of the pool: no table names them, so rows that only pad a batch use them.
    """

    def __init__(self, shape: PoolShape, dtype: torch.dtype, device: torch.device, *, spare: int = 0) -> None:
        self._shape = shape
        page = (shape.blocks + spare, shape.block_size, shape.kv_heads, shape.head_dim)
        # Written to, not only asked for as zeros: else the memory would be found at the first steps.
        self.keys = [torch.empty(page, dtype=dtype, device=device).zero_() for _ in range(shape.layers)]
        self.values = [torch.empty(page, dtype=dtype, device=device).zero_() for _ in range(shape.layers)]

    @property
    def pool_bytes(self) -> int:
        """Bytes of all pages."""
        return sum(page.nbytes for page in (*self.keys, *self.values))

    @property
    def pages(self) -> list[torch.Tensor]:
        """The pool's pages, keys and values of each layer; spare ones are not among them."""
        return [page[: self._shape.blocks] for page in (*self.keys, *self.values)]

    def store(self, layer: int, qkv: torch.Tensor, batch: DeviceBatch) -> torch.Tensor:
        """Rotate queries and keys of ``qkv`` in place and write keys and values into the pages of ``layer``.

        Returns the queries, ``[T, heads, head_dim]``, a view of ``qkv``.
        """
        heads, kv_heads = self._shape.heads, self._shape.kv_heads
        rotate_(qkv[:, : heads + kv_heads], batch.cos, batch.sin)
        query, key, value = torch.split(qkv, [heads, kv_heads, kv_heads], dim=1)
        for pages, new in ((self.keys[layer], key), (self.values[layer], value)):
            pages.view(-1, kv_heads, self._shape.head_dim).index_copy_(0, batch.slots, new.to(pages.dtype))
        return query


class OnPositionPages:
    """What every backend on `PositionPages` says of its pool in the same way."""

    def __init__(self, pages: PositionPages) -> None:
        self._pages = pages

    @property
    def pool_bytes(self) -> int:
        return self._pages.pool_bytes

    @property
    def pages(self) -> list[torch.Tensor]:
        return self._pages.pages
