"""A stored verdict, ready to be shown: each gate with its drawn interval, each next step with its link."""

from collections.abc import Mapping
from typing import Any

from django.utils.safestring import mark_safe

from controlplane.experiments.models import Experiment
from controlplane.ui.drawing import interval_bar
from scheduler_core.spec.parse import parse
from scheduler_core.verdict.report.curves import sweep_charts
from scheduler_core.verdict.schema import SweepVerdict

_TONES = {"passed": "good", "failed": "bad", "undecided": "warn", "missing": "warn"}


def comparisons(stored: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The comparisons of a verdict; empty while there is none."""
    return [{**item, "effects": _by_layer(item["effects"])} for item in _shown(stored, "comparisons")]


def sweeps(stored: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The load sweeps of a verdict, each with its charts; empty where there is none."""
    return [
        {**item, "charts": mark_safe(sweep_charts(parse(SweepVerdict, bare)))}
        for item, bare in zip(_shown(stored, "sweeps"), (stored or {}).get("sweeps") or [], strict=True)
    ]


def isolations(stored: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """What a verdict says of the isolation of a tenant or tier; empty where nothing."""
    return _shown(stored, "isolations")


def _shown(stored: Mapping[str, Any] | None, kind: str) -> list[dict[str, Any]]:
    return [
        {
            **item,
            "gates": [
                {**gate, "bar": interval_bar(gate), "tone": _TONES.get(gate["state"], "")} for gate in item["gates"]
            ],
            "next_steps": [
                {**step, "ref": f"{kind[0]}{place}.{number}" if step.get("experiment") else ""}
                for number, step in enumerate(item["next_steps"])
            ],
        }
        for place, item in enumerate((stored or {}).get(kind) or [])
    ]


def _by_layer(effects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Effects under their layer, in the verdict's order."""
    layers: dict[str, list[dict[str, Any]]] = {}
    for effect in effects:
        layers.setdefault(effect["layer"], []).append(effect)
    return [{"layer": layer, "rows": rows} for layer, rows in layers.items()]


def next_step(experiment: Experiment, reference: str) -> dict[str, Any] | None:
    """The experiment proposed as a step: ``c0.1`` is the second of the first comparison, ``s0.0`` is of a sweep.

    None when there is no such.
    """
    place, _, number = reference[1:].partition(".")
    kind = {"c": "comparisons", "s": "sweeps", "i": "isolations"}.get(reference[:1])
    if kind is None or not (place.isdecimal() and number.isdecimal() and len(reference) < 9):
        return None
    found = (experiment.verdict or {}).get(kind) or []
    steps = found[int(place)]["next_steps"] if int(place) < len(found) else []
    proposed = steps[int(number)].get("experiment") if int(number) < len(steps) else None
    return dict(proposed) if proposed else None
