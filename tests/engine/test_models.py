"""Configs and weights: what is supported, and how the rest is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gpu_runner.engine.config import SHAPES, from_hugging_face
from gpu_runner.engine.describe import describe
from gpu_runner.engine.executor import TorchExecutor
from gpu_runner.engine.model.weights import SeededWeights
from gpu_runner.engine.references import resolve
from scheduler_core.spec.target import BUILT_IN_MODELS
from scheduler_core.types.errors import InputError
from tests.engine.conftest import settings_for
from tests.engine.families import FAMILIES

GOOD: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 512,
}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model_type": "gpt2"}, "model_type"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 15}, "head_dim"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_scaling.rope_type"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"model_type": "mixtral"}, "num_local_experts"),
    ],
)
def test_an_unsupported_field_is_refused_by_name(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        from_hugging_face({**GOOD, **change})
    assert any(problem.where == f"config.json: {field}" for problem in caught.value.problems), caught.value


def test_every_problem_is_listed_at_once() -> None:
    with pytest.raises(InputError) as caught:
        from_hugging_face({**GOOD, "hidden_act": "gelu", "vocab_size": None, "num_key_value_heads": 3})
    assert len(caught.value.problems) == 3


def test_a_sliding_window_bounds_the_length_for_which_the_model_is_exact() -> None:
    assert from_hugging_face({**GOOD, "model_type": "mistral", "sliding_window": 128}).model_length == 128
    assert from_hugging_face({**GOOD, "model_type": "mistral", "sliding_window": None}).model_length == 512
    assert from_hugging_face({**GOOD, "model_type": "qwen2", "sliding_window": 128}).model_length == 512


def test_describe_gives_the_pool_arithmetic() -> None:
    """demo-s: 2 (K and V) x 6 layers x 9 heads x 32 x 4 bytes = 13,824 bytes a token, x 16 = 221,184 a block.

    Parameters: two embeddings of 4,096 x 288 = 2,359,296; per layer 4 x 288 x 288 + 3 x 288 x 768 + 2 x 288 = 995,904,
    six times 5,975,424; the last norm 288. Together 8,335,008.
    """
    info = describe("demo-s")
    assert info.bytes_per_token("float32") == 13_824
    assert info.bytes_per_block(16, "float32") == 221_184
    assert info.bytes_per_block(16, "bfloat16") == 110_592
    assert info.parameters == 8_335_008


@pytest.mark.parametrize("family", FAMILIES)
def test_describe_counts_the_parameters_that_a_folder_holds(family: str, folders: Callable[[str], Path]) -> None:
    tensors = load_file(folders(family) / "model.safetensors")
    assert describe(str(folders(family))).parameters == sum(tensor.numel() for tensor in tensors.values())


def test_describing_builds_nothing() -> None:
    """A config alone is enough to size a pool."""
    assert describe("shape-l").parameters > 300_000_000


@pytest.mark.parametrize("name", ["no-such-shape", "/no/such/folder"])
def test_an_unknown_model_names_the_choices(name: str) -> None:
    with pytest.raises(InputError, match="neither a built-in shape"):
        resolve(name)


def test_specs_know_the_built_in_shapes_that_exist() -> None:
    """A spec is checked where no engine is, so its list of names must be the engine's own."""
    assert set(BUILT_IN_MODELS) == set(SHAPES)


def test_seeded_weights_depend_on_seed_and_name_only() -> None:
    one, two = SeededWeights(1, 2), SeededWeights(1, 2)
    two.get("other.weight", (3, 3))
    assert torch.equal(one.get("a.weight", (4, 4)), two.get("a.weight", (4, 4)))
    assert not torch.equal(one.get("a.weight", (4, 4)), SeededWeights(2, 2).get("a.weight", (4, 4)))
    assert one.get("a.weight", (2, 2))[0, 0].item() == pytest.approx(0.8132844, abs=1e-6)


def load(folder: Path) -> None:
    TorchExecutor(settings_for(str(folder))).load()


@pytest.fixture
def copy(folders: Callable[[str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(folders("llama"), tmp_path / "copy"))


def test_a_folder_without_weights_is_refused(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"no \*\.safetensors file"):
        load(copy)


def test_random_weights_for_a_config_have_to_be_asked_for(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    load_random = TorchExecutor(settings_for(f"random:{copy}"))
    assert load_random.load().device_bytes > 0


def test_a_truncated_file_is_refused(copy: Path) -> None:
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="not readable as safetensors"):
        load(copy)


@pytest.mark.parametrize(
    ("name", "tensor", "said"),
    [
        ("model.norm.weight", None, "has no tensor 'model.norm.weight'"),
        ("model.norm.weight", torch.zeros(5), r"shape \(5,\), expected \(32,\)"),
        ("model.norm.weight", torch.zeros(32, dtype=torch.int32), "expected fp32, bf16 or fp16"),
    ],
)
def test_a_wrong_tensor_is_refused_by_name(copy: Path, name: str, tensor: torch.Tensor | None, said: str) -> None:
    tensors = load_file(copy / "model.safetensors")
    del tensors[name]
    if tensor is not None:
        tensors[name] = tensor
    save_file(tensors, copy / "model.safetensors")
    with pytest.raises(InputError, match=said):
        load(copy)


def test_a_damaged_index_is_refused(copy: Path) -> None:
    (copy / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(InputError, match="not a safetensors index"):
        load(copy)


def test_a_damaged_config_is_refused(copy: Path) -> None:
    (copy / "config.json").write_text("{")
    with pytest.raises(InputError, match="not readable as JSON"):
        load(copy)
    (copy / "config.json").write_text(json.dumps([1]))
    with pytest.raises(InputError, match="expected a JSON object"):
        load(copy)


def test_every_built_in_shape_is_consistent() -> None:
    for config in SHAPES.values():
        assert config.heads % config.kv_heads == 0
        assert config.head_dim % 2 == 0
