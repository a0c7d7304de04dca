"""Where weights come from: safetensors files of a Hugging Face folder, or a seed; `ggufweights` reads GGUF files.

All answer to Hugging Face tensor names, so that a seeded model can be saved and loaded elsewhere unchanged.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from scheduler_core.types.errors import InputError, Problem

Shape = tuple[int, ...]


class Weights(Protocol):
    """A source of named tensors."""

    def get(self, name: str, shape: Shape) -> torch.Tensor:
        """The tensor ``name`` on the CPU, which must have ``shape``; `InputError` when it is missing or differs."""


class SeededWeights:
    """Random weights: each tensor depends on the seed and its own name only, never on the order of asking.

    Matrices are normal with variance 1 / fan-in, the two that write into the residual stream damped by the depth
    (GPT-2's rule), norms are one and biases small: activations and logits keep a healthy scale at any size.
    """

    def __init__(self, seed: int, layers: int) -> None:
        self._seed = seed
        self._residual_scale = 1 / math.sqrt(2 * layers)

    def get(self, name: str, shape: Shape) -> torch.Tensor:
        if "norm" in name:
            return torch.ones(shape)
        digest = hashlib.blake2b(f"{self._seed}|{name}".encode(), digest_size=16).digest()
        generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
        values = generator.standard_normal(shape, dtype=np.float32)
        if name.endswith(".bias"):
            values *= 0.1
        else:
            values *= shape[-1] ** -0.5
        if name.endswith(("o_proj.weight", "down_proj.weight", "w2.weight")):
            values *= self._residual_scale
        return torch.from_numpy(values)


class FolderWeights:
    """The ``*.safetensors`` files of a folder, sharded or not, opened lazily."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = self._index()

    def get(self, name: str, shape: Shape) -> torch.Tensor:
        path = self._files.get(name)
        if path is None:
            raise InputError([Problem(str(self._folder), f"has no tensor {name!r}")])
        try:
            with safe_open(path, framework="pt") as file:
                tensor: torch.Tensor = file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise InputError([Problem(str(path), f"not readable as safetensors: {error}")]) from None
        if tuple(tensor.shape) != shape:
            raise InputError([Problem(f"{path}: {name}", f"has shape {tuple(tensor.shape)}, expected {shape}")])
        if not tensor.is_floating_point():
            raise InputError([Problem(f"{path}: {name}", f"has type {tensor.dtype}; expected fp32, bf16 or fp16")])
        return tensor

    def _index(self) -> dict[str, Path]:
        index = self._folder / "model.safetensors.index.json"
        if index.is_file():
            try:
                names = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
                return {str(name): self._folder / str(file) for name, file in names.items()}
            except (OSError, ValueError, KeyError, AttributeError) as error:
                raise InputError([Problem(str(index), f"not a safetensors index: {error!r}")]) from None
        files = sorted(self._folder.glob("*.safetensors"))
        if not files:
            raise InputError([Problem(str(self._folder), "has no *.safetensors file; a GGUF file is named itself")])
        return dict(self._names(files))

    def _names(self, files: list[Path]) -> Iterator[tuple[str, Path]]:
        for path in files:
            try:
                with safe_open(path, framework="pt") as file:
                    for name in file.keys():  # noqa: SIM118 - a safetensors handle is no mapping
                        yield str(name), path
            except (OSError, SafetensorError) as error:
                raise InputError([Problem(str(path), f"not readable as safetensors: {error}")]) from None
