"""Shared prompt beginnings of generated workloads."""

from collections.abc import Iterator

from scheduler_core.spec.workload import Prefix
from scheduler_core.workload.distributions import exact
from scheduler_core.workload.uniform import BITS, ONE, Stream


class SharedPrefixes:
    """Which common prefix, if any, a prompt starts with, as block ids from 0 up."""

    def __init__(self, prefix: Prefix | None, block_size: int, seed: int) -> None:
        self.block_size = block_size
        self._blocks = 0 if prefix is None else prefix.tokens // block_size
        self._groups = 0 if prefix is None else prefix.groups
        self._limit = 0 if prefix is None else round(exact(prefix.share) * ONE)
        self._whether = Stream(seed, "prefix")
        self._which = Stream(seed, "prefix-group")
        self._whole: dict[int, tuple[int, ...]] = {}
        self._remainder = 0 if prefix is None else prefix.tokens % block_size

    @property
    def first_free_id(self) -> int:
        """The smallest block id that no prefix uses."""
        return self._groups * self._blocks

    def ids(self, who: int, prompt_tokens: int) -> tuple[int, ...]:
        """Ids of the whole blocks that a prompt of this length by ``who`` shares with its group."""
        if not self._limit or self._whether.at(who) >= self._limit:
            return ()
        group = self._which.at(who) * self._groups >> BITS
        return self._of_group(group, min(self._blocks, prompt_tokens // self.block_size))

    def _of_group(self, group: int, blocks: int) -> tuple[int, ...]:
        """The first ids of a group; whole prefixes are kept, so that a million requests share one tuple."""
        first = group * self._blocks
        if blocks < self._blocks:
            return tuple(range(first, first + blocks))
        if group not in self._whole:
            self._whole[group] = tuple(range(first, first + blocks))
        return self._whole[group]

    def notes(self) -> Iterator[str]:
        """What a reader should know about the rounding to blocks."""
        if self._remainder:
            yield (
                f"shared prefixes are cut to {self._blocks * self.block_size} tokens: "
                f"{self._blocks} whole blocks of {self.block_size}"
            )
