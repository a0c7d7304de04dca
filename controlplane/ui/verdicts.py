"""A stored verdict, ready to be shown: each gate with its drawn interval, each next step with its link."""

from collections.abc import Mapping
from typing import Any

from controlplane.experiments.models import Experiment
from controlplane.ui.drawing import interval_bar

_TONES = {"passed": "good", "failed": "bad", "undecided": "warn", "missing": "warn"}


def comparisons(stored: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The comparisons of a verdict; empty while there is none."""
    verdict = stored or {}
    return [
        {
            **item,
            "gates": [
                {**gate, "bar": interval_bar(gate), "tone": _TONES.get(gate["state"], "")} for gate in item["gates"]
            ],
            "next_steps": [
                {**step, "ref": f"{place}.{number}" if step.get("experiment") else ""}
                for number, step in enumerate(item["next_steps"])
            ],
            "effects": _by_layer(item["effects"]),
        }
        for place, item in enumerate(verdict.get("comparisons") or [])
    ]


def _by_layer(effects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Effects under their layer, in the verdict's order."""
    layers: dict[str, list[dict[str, Any]]] = {}
    for effect in effects:
        layers.setdefault(effect["layer"], []).append(effect)
    return [{"layer": layer, "rows": rows} for layer, rows in layers.items()]


def next_step(experiment: Experiment, reference: str) -> dict[str, Any] | None:
    """The experiment proposed as step ``comparison.number``; None when there is no such."""
    place, _, number = reference.partition(".")
    if not (place.isdecimal() and number.isdecimal() and len(reference) < 8):
        return None
    found = (experiment.verdict or {}).get("comparisons") or []
    steps = found[int(place)]["next_steps"] if int(place) < len(found) else []
    proposed = steps[int(number)].get("experiment") if int(number) < len(steps) else None
    return dict(proposed) if proposed else None
