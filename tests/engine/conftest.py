from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import transformers

from gpu_runner.engine.executor import TorchExecutor
from gpu_runner.engine.settings import EngineSettings
from tests.engine.families import FAMILIES

KV_BLOCKS = 12
HOST_BLOCKS = 5
BLOCK_SIZE = 16


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Local Hugging Face folders of the small models of `FAMILIES`, each made once, with random weights."""
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            torch.manual_seed(7)
            made[name] = tmp_path_factory.mktemp(name)
            model = transformers.AutoModelForCausalLM.from_config(FAMILIES[name], torch_dtype=torch.float32)  # type: ignore[no-untyped-call]
            for parameter in model.parameters():  # biases and norms are all zeros and ones until trained
                parameter.data.add_(0.02 * torch.randn_like(parameter))
            model.save_pretrained(made[name])
        return made[name]

    return folder


def settings_for(model: str, **changes: object) -> EngineSettings:
    values: dict[str, object] = {
        "device": "cpu",
        "threads": 1,
        "kv_blocks": KV_BLOCKS,
        "block_size": BLOCK_SIZE,
        "host_blocks": HOST_BLOCKS,
        "prefix_block_size": BLOCK_SIZE,
    }
    return EngineSettings(model=model, **{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def loaded(folders: Callable[[str], Path]) -> Iterator[Callable[..., TorchExecutor]]:
    """Loaded and started executors of the small models, shared by tests that close what they open."""
    made: dict[tuple[str, str], TorchExecutor] = {}

    def executor(name: str, attention: str = "auto") -> TorchExecutor:
        if (name, attention) not in made:
            one = TorchExecutor(settings_for(str(folders(name)), attention=attention))
            one.load()
            one.start()
            made[name, attention] = one
        return made[name, attention]

    yield executor
    made.clear()
