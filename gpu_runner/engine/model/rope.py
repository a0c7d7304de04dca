"""Rotary position embedding with the scaling variants of the Llama family.

Formulas: RoFormer (Su et al., 2021) for the rotation; linear position interpolation (Chen et al., 2023); the Llama 3.1
wavelength bands; YaRN (Peng et al., 2023), all in the form of `transformers`' ``modeling_rope_utils``.
"""

import math

import torch

from gpu_runner.engine.config import Rope


def rope_tables(rope: Rope, head_dim: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, each fp32 ``[length, head_dim / 2]``, attention scaling included."""
    frequencies, scale = _frequencies(rope, head_dim)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    return angles.cos() * scale, angles.sin() * scale


def rotate_(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate ``heads`` ``[T, H, D]`` in place by the angles of ``cos`` and ``sin`` ``[T, D / 2]``.

    The halves of a head are paired (``x[i]`` with ``x[i + D / 2]``), as Hugging Face weights expect.
    """
    half = heads.shape[-1] // 2
    first, second = heads[..., :half], heads[..., half:]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    turned = first.float() * cos - second.float() * sin
    second.copy_(second.float() * cos + first.float() * sin)
    first.copy_(turned)


def _frequencies(rope: Rope, head_dim: int) -> tuple[torch.Tensor, float]:
    base = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if rope.divisors:
        base = base / torch.tensor(rope.divisors)
    if rope.kind == "linear":
        return base / rope.factors["factor"], 1.0
    if rope.kind == "llama3":
        return _llama3(base, rope), 1.0
    if rope.kind == "yarn":
        return _yarn(base, rope, head_dim)
    return base, 1.0


def _llama3(base: torch.Tensor, rope: Rope) -> torch.Tensor:
    factor, original = rope.factors["factor"], rope.factors["original_max_position_embeddings"]
    low, high = rope.factors["low_freq_factor"], rope.factors["high_freq_factor"]
    wavelength = 2 * math.pi / base
    smooth = ((original / wavelength - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - smooth) * base / factor + smooth * base


def _yarn(base: torch.Tensor, rope: Rope, head_dim: int) -> tuple[torch.Tensor, float]:
    factor, original = rope.factors["factor"], rope.factors["original_max_position_embeddings"]

    def dimension(rotations: float) -> float:
        return head_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low = max(dimension(rope.factors.get("beta_fast") or 32.0), 0)
    high = min(dimension(rope.factors.get("beta_slow") or 1.0), head_dim - 1)
    if rope.factors.get("truncate", 1.0):
        low, high = math.floor(low), math.ceil(high)
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)
    keep = 1 - ramp.clamp(0.0, 1.0)
    return base / factor * (1 - keep) + base * keep, _yarn_scale(rope, factor)


def _yarn_scale(rope: Rope, factor: float) -> float:
    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    given = rope.factors.get("attention_factor")
    if given is not None:
        return given
    top, bottom = rope.factors.get("mscale"), rope.factors.get("mscale_all_dim")
    if top and bottom:
        return mscale(top) / mscale(bottom)
    return mscale(1.0)
