"""Weights of a GGUF file, asked for by Hugging Face names."""

import re

import numpy as np
import numpy.typing as npt
import torch

from gpu_runner.engine.ggufs import Gguf
from gpu_runner.engine.model.weights import Shape
from scheduler_core.types.errors import InputError, Problem

_EXPERT = re.compile(r"\.experts\.(\d+)\.")


class GgufWeights:
    """The tensors of a GGUF file, each brought to fp32 when it is asked for.

    llama.cpp pairs neighbours of a head for rotary embedding where Hugging Face pairs halves, so its converter permutes
    the rows of queries and keys of a ``llama``; here they are put back. Experts of a layer lie in one tensor.
    """

    def __init__(self, file: Gguf) -> None:
        import gguf

        self._file = file
        self._dequantize = gguf.quants.dequantize
        numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
        self._names = gguf.get_tensor_name_map(numbers[file.architecture], file.config.layers)

    def get(self, name: str, shape: Shape) -> torch.Tensor:
        stored, expert = self._stored(name)
        tensor = self._file.tensors.get(stored)
        if tensor is None:
            raise InputError([Problem(str(self._file.path), f"has no tensor {stored!r}")])
        where = f"{self._file.path}: {stored}"
        expected = shape if expert is None else (self._experts, *shape)
        found = tuple(int(size) for size in reversed(tensor.shape))
        if found != expected:
            raise InputError([Problem(where, f"has shape {found}, expected {expected}")])
        data = tensor.data if expert is None else tensor.data[expert]
        try:
            values = self._dequantize(data, tensor.tensor_type)
        except NotImplementedError:
            kind = tensor.tensor_type.name
            raise InputError([Problem(where, f"type {kind} cannot be read by the installed gguf package")]) from None
        return torch.from_numpy(np.array(self._put_back(name, values), np.float32))

    @property
    def _experts(self) -> int:
        experts = self._file.config.experts
        return 0 if experts is None else experts.count

    def _stored(self, name: str) -> tuple[str, int | None]:
        """The name in the file, and the number of the expert whose part of the tensor it is."""
        found = _EXPERT.search(name)
        stored = self._names.get_name(_EXPERT.sub(".experts.", name), try_suffixes=(".weight", ".bias"))
        return stored or name, None if found is None else int(found[1])

    def _put_back(self, name: str, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Rows of a head in Hugging Face's order: all first members of the pairs, then all second ones."""
        config = self._file.config
        heads = {"q_proj": config.heads, "k_proj": config.kv_heads}.get(name.split(".")[-2])
        if self._file.architecture != "llama" or heads is None:
            return values
        pairs = values.reshape(heads, config.head_dim // 2, 2, *values.shape[1:])
        return pairs.swapaxes(1, 2).reshape(values.shape)
