"""The bundled small experiment that a newcomer runs with one button."""

from functools import cache
from pathlib import Path

_FILE = Path(__file__).with_name("first_experiment.yaml")


@cache
def first_experiment_text() -> str:
    """Its YAML, the same as for the command line and REST."""
    return _FILE.read_text()
