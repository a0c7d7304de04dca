"""From a model's name to the source of its weights."""

from gpu_runner.engine.config import ModelConfig
from gpu_runner.engine.ggufs import SUFFIX, open_gguf
from gpu_runner.engine.model.ggufweights import GgufWeights
from gpu_runner.engine.model.weights import FolderWeights, SeededWeights, Weights
from gpu_runner.engine.references import located, seeded


def open_weights(model: str, config: ModelConfig, seed: int) -> Weights:
    """Seeded weights for a built-in shape or ``random:MODEL``, else those of the local folder or GGUF file."""
    if seeded(model):
        return SeededWeights(seed, config.layers)
    place = located(model)
    return GgufWeights(open_gguf(place)) if place.suffix == SUFFIX else FolderWeights(place)
