"""The same weights in `transformers` and in the engine give the same logits and the same greedy tokens."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from gpu_runner.engine.executor import TorchExecutor
from gpu_runner.engine.prompts import prompt_ids
from gpu_runner.engine.references import resolve
from tests.engine.conftest import settings_for
from tests.engine.families import FAMILIES
from tests.engine.playing import alone, request

TOLERANCE = 2e-4
"""Largest difference of a logit; those of the small models reach about 30."""


def reference(folder: Path) -> transformers.PreTrainedModel:
    """The model of `transformers`, in evaluation mode as ``from_pretrained`` leaves it."""
    return transformers.AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32)


def greedy(model: transformers.PreTrainedModel, prompt: np.ndarray, count: int) -> tuple[list[int], list[float]]:
    """Greedy tokens of `transformers`, and the distance of the two best logits at each."""
    ids, tokens, margins = torch.from_numpy(prompt)[None], [], []
    with torch.inference_mode():
        for _ in range(count):
            best = model(ids).logits[0, -1].topk(2)
            tokens.append(int(best.indices[0]))
            margins.append(float(best.values[0] - best.values[1]))
            ids = torch.cat((ids, best.indices[None, :1]), dim=1)
    return tokens, margins


@pytest.mark.parametrize("attention", ["auto", "gather"])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_those_of_transformers(
    family: str, attention: str, folders: Callable[[str], Path], loaded: Callable[..., TorchExecutor]
) -> None:
    executor = loaded(family, attention)
    planned = request(45, 12, seed=3)
    prompt = prompt_ids(planned, vocab_size=96, prefix_block_size=8)
    tokens, margins = greedy(reference(folders(family)), prompt, 12)
    first_tie = next((i for i, margin in enumerate(margins) if margin < TOLERANCE), 12)
    for chunk in (1 << 30, 7):
        assert alone(executor, request(45, 12, seed=3), chunk=chunk).tokens[:first_tie] == tokens[:first_tie]
    assert first_tie > 6, "the weights of this test are meant to give clear winners"


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers(family: str, folders: Callable[[str], Path]) -> None:
    from tests.engine.direct import last_logits

    planned = request(60, 1, seed=5)
    prompt = prompt_ids(planned, vocab_size=96, prefix_block_size=8)
    with torch.inference_mode():
        expected = reference(folders(family))(torch.from_numpy(prompt)[None]).logits[0, -1]
    for chunk in (60, 13):
        actual = last_logits(str(folders(family)), planned, chunk=chunk)
        assert (actual - expected).abs().max() < TOLERANCE


def test_a_sharded_folder_reads_like_a_single_file(folders: Callable[[str], Path], tmp_path: Path) -> None:
    model = reference(folders("llama"))
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    executor = TorchExecutor(settings_for(str(tmp_path)))
    executor.load()
    executor.start()
    whole = TorchExecutor(settings_for(str(folders("llama"))))
    whole.load()
    whole.start()
    assert alone(executor, request(20, 8, seed=1)).tokens == alone(whole, request(20, 8, seed=1)).tokens


def test_the_old_spelling_of_rope_scaling_means_the_same(folders: Callable[[str], Path], tmp_path: Path) -> None:
    """Releases of `transformers` before 5 wrote ``rope_theta`` and ``rope_scaling`` as two fields."""
    data = json.loads((folders("llama-rope-llama3") / "config.json").read_text())
    new = data.pop("rope_parameters")
    data["rope_theta"] = new.pop("rope_theta")
    data["rope_scaling"] = new
    (tmp_path / "config.json").write_text(json.dumps(data))
    assert resolve(str(tmp_path)) == resolve(str(folders("llama-rope-llama3")))
