"""A server as it was found: kind, version, abilities, and the settings it says it runs with."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Abilities:
    """What a server takes and tells; what it lacks is left out of requests, and said."""

    token_ids: bool = False
    ignore_eos: bool = False
    counts_per_chunk: bool = False
    answer_ids: bool = False
    priorities: bool = False
    reset_path: str = ""


@dataclass(frozen=True)
class Found:
    """A server that answered.

    ``settings`` are those that a policy can set, under the policy's names (``batch.token_budget``), as the server said
    them; ``other`` holds the rest worth keeping. A setting that could not be read is in neither.
    """

    kind: str
    version: str
    model: str
    abilities: Abilities
    settings: dict[str, Any] = field(default_factory=dict)
    other: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
