"""Which layer differs between two arms: an effect is credited to one layer, or to the bundle that a preset is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scheduler_core.spec.policy import SECTIONS

LAYERS = {
    "order": "layer 1, request order",
    "cache": "layer 2, cache",
    "batch": "layer 3, batch and queue",
    "predict": "prediction",
    "admission": "admission",
    "feedback": "feedback",
    "pools": "layer 4, pools",
    "execution": "execution, how a step runs",
}
# Parameters by which a policy may drop or hold work; only they can explain that fewer requests finish.
ADMISSION = {"batch.queue_limit", "cache.admit", "cache.watermark", "cache.blocks"}


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs: dotted parameters with (baseline, candidate) values, and the layers they belong to.

    ``deployment`` holds what two servers said differently of themselves, or their names where they said nothing.
    """

    parameters: dict[str, tuple[Any, Any]]
    preset: tuple[str, str] | None
    deployment: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    @property
    def sections(self) -> list[str]:
        """Changed sections in order of layer."""
        return [name for name in SECTIONS if any(key.startswith(f"{name}.") for key in self.parameters)]

    @property
    def none(self) -> bool:
        """Whether the arms are the same policy: an A/A comparison."""
        return not self.parameters and self.preset is None and not self.deployment

    @property
    def layer(self) -> str:
        """The one layer that changed; ``preset`` for a bundle that a preset declares; several layers joined."""
        if self.preset is not None:
            return "preset"
        if self.deployment:
            return "deployment"
        return " + ".join(LAYERS[name] for name in self.sections) or "none"

    @property
    def single(self) -> bool:
        """Whether one layer alone changed, so that it can be credited."""
        return self.preset is None and not self.deployment and len(self.sections) == 1

    @property
    def explains_dropping(self) -> bool:
        """Whether a changed parameter decides about admission or cache size."""
        gate = any(name.startswith("admission.") for name in self.parameters)
        return gate or bool(ADMISSION & self.parameters.keys())

    def sentence(self) -> str:
        """The difference in words."""
        if self.none:
            return "the arms are the same policy (A/A): every difference is noise"
        changed = ", ".join(f"{key} {_show(old)} -> {_show(new)}" for key, (old, new) in self.parameters.items())
        if self.preset is not None:
            bundle = f"preset {self.preset[0]} -> {self.preset[1]}, one declared bundle"
            return f"{bundle} ({changed})" if changed else bundle
        if self.deployment:
            shown = ", ".join(f"{key} {_show(old)} -> {_show(new)}" for key, (old, new) in self.deployment.items())
            bundle = f"the deployment, one declared bundle ({shown})"
            return f"{changed} ({bundle})" if changed else bundle
        return f"{changed} ({self.layer})"


def difference(
    baseline: Mapping[str, Any],
    candidate: Mapping[str, Any],
    deployments: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {}),
) -> Difference:
    """What differs between two resolved policies, and between the servers that they were played on."""
    presets = (str(baseline.get("policy", "")), str(candidate.get("policy", "")))
    parameters: dict[str, tuple[Any, Any]] = {}
    for section in SECTIONS:
        old, new = dict(baseline.get(section) or {}), dict(candidate.get(section) or {})
        for key in sorted(old.keys() | new.keys()):
            if old.get(key) != new.get(key):
                parameters[f"{section}.{key}"] = (old.get(key), new.get(key))
    old_server, new_server = deployments
    servers = {
        key: (old_server.get(key), new_server.get(key))
        for key in sorted(old_server.keys() | new_server.keys())
        if old_server.get(key) != new_server.get(key) and key.removeprefix("settings.") not in parameters
    }
    return Difference(parameters, presets if presets[0] != presets[1] else None, servers)


def _show(value: Any) -> str:
    """A value as it is written in a policy."""
    if isinstance(value, bool):
        return str(value).lower()
    return "default" if value is None else str(value)
