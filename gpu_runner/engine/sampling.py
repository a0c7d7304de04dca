"""From logits to token ids."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from gpu_runner.engine.layout import FlatBatch
from gpu_runner.engine.native.compiled import UnavailableError, library
from gpu_runner.engine.prompts import uniform_draws
from gpu_runner.engine.settings import Sampling

TIE_TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1, "float16": 0.02}
"""Logit distance below which two tokens count as tied, by dtype.

Another batch shape adds the same products in another order. The largest change of a logit found so, over chunkings,
batch mates and both CPU backends on the built-in shapes (logits of standard deviation 1), was 6e-6 in fp32 and 0.017
in bf16.
"""


@dataclass(frozen=True, slots=True)
class Picked:
    """Token ids and the distance of the two best logits, each ``[sampled]``; infinite where tokens are drawn."""

    tokens: torch.Tensor
    margins: torch.Tensor


def pick(logits: torch.Tensor, flat: FlatBatch, sampling: Sampling) -> Picked:
    """One token for each row of ``logits`` ``[sampled, vocab]``, which may be overwritten."""
    if sampling.temperature == 0:
        return greedy(logits)
    draws = torch.from_numpy(uniform_draws(flat.seeds, flat.places)).to(logits.device)
    return Picked(draw(logits, draws, sampling), torch.full_like(logits[:, 0], float("inf")))


def draw(logits: torch.Tensor, draws: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Tokens by inversion: the first whose cumulative probability, best token first, exceeds its draw in [0, 1)."""
    kept = logits.shape[1] if sampling.top_k == 0 else min(sampling.top_k, logits.shape[1])
    best, tokens = torch.topk(logits.double() / sampling.temperature, kept, dim=-1)
    cumulative = torch.softmax(best, dim=-1).cumsum(dim=-1)
    # Tokens before the first whose sum reaches top_p, and that one itself.
    count = (cumulative < sampling.top_p).sum(dim=-1, keepdim=True).clamp(max=kept - 1)
    reach = cumulative.gather(1, count)
    place = (cumulative <= draws.unsqueeze(1) * reach).sum(dim=-1, keepdim=True)
    return tokens.gather(1, torch.minimum(place, count)).squeeze(1)


def greedy(logits: torch.Tensor) -> Picked:
    """The best token of each row of ``logits`` ``[sampled, vocab]``, fp32, which may be overwritten."""
    rows, width = logits.shape
    fast = _in_one_pass() if logits.device.type == "cpu" and logits.is_contiguous() else None
    if fast is not None and width % fast[1] == 0:
        tokens, margins = torch.empty(rows, dtype=torch.int64), torch.empty(rows)
        places = logits.data_ptr(), tokens.data_ptr(), margins.data_ptr()
        fast[0](*places, rows, width, torch.get_num_threads())
        return Picked(tokens, margins)
    return in_two_passes(logits)


@cache
def _in_one_pass() -> tuple[Callable[..., None], int] | None:
    """The compiled kernel and what row widths must be multiples of; None where there is none."""
    try:
        loaded = library()
    except UnavailableError:
        return None
    best = loaded.best_f32
    best.argtypes, best.restype = [*[ctypes.c_void_p] * 3, ctypes.c_long, ctypes.c_long, ctypes.c_int], None
    return best, loaded.lanes()


def in_two_passes(logits: torch.Tensor) -> Picked:
    """As `greedy`, on every device."""
    best, tokens = logits.max(dim=-1)
    logits.scatter_(1, tokens.unsqueeze(1), float("-inf"))
    return Picked(tokens, best - logits.amax(dim=-1))
