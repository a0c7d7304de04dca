"""How much of what a step computed."""

from typing import NamedTuple, TypeAlias

from scheduler_core.types.plan import Phase

_DECODE, _RECOMPUTE = Phase.DECODE.value, Phase.RECOMPUTE.value

Rows: TypeAlias = list[tuple[int, int, int, int, str, int, int]]
"""Grants as in `scheduler_core.types.records.Step`."""


class Counts(NamedTuple):
    """Tokens of a step by phase, and how many requests are in their prompt."""

    prefill: int
    decode: int
    recompute: int
    prefilling: int
    decoding: int


def counts_of(grants: Rows, along: int = 0) -> Counts:
    """Of ``grants`` and of ``along`` requests that decode along."""
    prefill = recompute = prefilling = 0
    decode = along
    for _, _, _, length, phase, _, _ in grants:
        if phase == _DECODE:
            decode += length
        else:
            prefilling += 1
            if phase == _RECOMPUTE:
                recompute += length
            else:
                prefill += length
    return Counts(prefill, decode, recompute, prefilling, len(grants) - prefilling + along)
