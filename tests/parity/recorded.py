"""Drives of vLLM's scheduler kept as files, so that they can be compared with where vLLM is not installed.

``python -m tests.parity.recorded`` makes them anew with the interpreter that HEADWAY_VLLM_PYTHON names.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers.process import VLLM, Peer
from tests.parity.drives import Step, Theirs, drive
from tests.parity.scenarios import Scenario, draw

FOLDER = Path(__file__).parent / "recordings"
UNCAPPED = {"long_prefill_cap": 0}
FCFS = {"chunked": True, "by_priority": False}
SCENARIOS: dict[str, tuple[int, dict[str, Any]]] = {
    "chunked-prompts": (350, {"token_budget": 40, "prefix_cache": False, **FCFS, **UNCAPPED}),
    "whole-prompts": (304, {"prefix_cache": False, **FCFS, "chunked": False, **UNCAPPED}),
    "long-prefill-cap": (391, {"long_prefill_cap": 24, "token_budget": 100, **FCFS, "prefix_cache": False}),
    "preemption": (183, {"prefix_cache": False, "by_priority": False, "watermark": 0.0}),
    "prefix-cache": (149, {"prefix_cache": True, "by_priority": False}),
    "priorities": (183, {"prefix_cache": True, "by_priority": True}),
    "self-preemption": (36, {"by_priority": True}),
    "watermark": (60, {"watermark": 0.3, "prefix_cache": True, "by_priority": False}),
    "blocks-of-one-token": (149, {"block_size": 1, "prefix_cache": True}),
    "large-blocks": (225, {"block_size": 32, "prefix_cache": True}),
    "aborts": (74, {}),
}
"""Name to seed and fixed settings of `draw`; the name says what happens in it."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A scenario, the steps that vLLM's scheduler took in it, and the version that took them."""

    version: str
    scenario: Scenario
    steps: tuple[Step, ...]

    def write(self, path: Path) -> None:
        """One line a step, so that a changed decision is a changed line."""
        head = json.dumps({"vllm": self.version, **self.scenario.as_json()})
        lines = [json.dumps([step.grants, step.preempted], separators=(",", ":")) for step in self.steps]
        path.write_text("\n".join([head, *lines]) + "\n")

    @classmethod
    def read(cls, path: Path) -> "Recording":
        first, *lines = path.read_text().splitlines()
        head = json.loads(first)
        return cls(head["vllm"], Scenario.from_json(head), tuple(Step.from_json(json.loads(line)) for line in lines))


def main() -> None:
    """Record every scenario."""
    FOLDER.mkdir(exist_ok=True)
    with Peer("vllm_scheduler.py", VLLM) as peer:
        for name, (seed, fixed) in SCENARIOS.items():
            scenario = draw(seed, **fixed)
            steps = tuple(drive(scenario, Theirs(peer, scenario)))
            Recording(peer.greeting["version"], scenario, steps).write(FOLDER / f"{name}.jsonl")


if __name__ == "__main__":
    main()
