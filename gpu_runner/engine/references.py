"""What the name of a model means: a built-in shape, a local folder or GGUF file, or one that a package carries.

Nothing here imports torch, so that `describe` is cheap wherever a pool has to be sized.
"""

import json
from importlib import metadata
from pathlib import Path

from gpu_runner.engine.config import SHAPES, ModelConfig, from_hugging_face
from gpu_runner.engine.ggufs import SUFFIX, open_gguf
from scheduler_core.types.errors import InputError, Problem

RANDOM = "random:"
WHEEL = "wheel:"


def seeded(model: str) -> bool:
    """Whether the weights come from a seed: built-in shapes, and what is written ``random:MODEL``."""
    return model in SHAPES or model.startswith(RANDOM)


def located(model: str) -> Path:
    """The folder or file a model's name means, ``random:`` stripped and the package of ``wheel:NAME`` looked into."""
    name = model.removeprefix(RANDOM)
    return _carried(name.removeprefix(WHEEL)) if name.startswith(WHEEL) else Path(name).expanduser()


def resolve(model: str) -> ModelConfig:
    """The config of a built-in shape, a local folder or a GGUF file; `InputError` names what is wrong.

    ``random:MODEL`` takes the config of a folder or file with seeded random weights.
    """
    if model in SHAPES:
        return SHAPES[model]
    place = located(model)
    if place.suffix == SUFFIX and not place.is_dir():
        return open_gguf(place).config
    path = place / "config.json"
    if not path.is_file():
        message = (
            f"{model!r} is neither a built-in shape ({', '.join(SHAPES)}), nor a folder with a config.json, "
            f"nor a file *{SUFFIX}"
        )
        raise InputError([Problem("target.model", message)])
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError([Problem(str(path), f"not readable as JSON: {error}")]) from None
    if not isinstance(data, dict):
        raise InputError([Problem(str(path), "expected a JSON object")])
    return from_hugging_face(data, where=str(path))


def origin(model: str) -> dict[str, str | int | float]:
    """What tells a model's file from another of its name: size, and the package's version; nothing of other models."""
    if seeded(model) or (place := located(model)).suffix != SUFFIX:
        return {}
    marks: dict[str, str | int | float] = {"weights": f"{place.name}, {place.stat().st_size} bytes"}
    if model.startswith(WHEEL):
        package = model.removeprefix(WHEEL)
        marks["package"] = f"{package} {metadata.version(package)}"
    return marks


def _carried(package: str) -> Path:
    """The one GGUF file among the files of an installed package."""
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        message = f"no package {package!r} is installed here; install it without what it asks for: "
        raise InputError([Problem("target.model", f"{message}pip install --no-deps {package}")]) from None
    found = [Path(str(file.locate())) for file in files if file.suffix == SUFFIX]
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        message = f"the package {package!r} has to carry one file *{SUFFIX}, it has {names}"
        raise InputError([Problem("target.model", f"{message}; with several, name a file by its path")])
    return found[0]
