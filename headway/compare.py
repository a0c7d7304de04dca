"""Two running servers as an experiment: one plan, played against each in turn, judged like any other."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.parse import parse
from scheduler_core.spec.yamltext import load_yaml
from scheduler_core.types.errors import InputError, Problem

SYNTHETIC = {"profile": "azure-2023-conv", "rate_rps": 2.0, "requests": 200}


def comparison(baseline: str, candidate: str, trace: Path | None, changes: Sequence[str] = ()) -> ExperimentSpec:
    """The experiment that plays ``trace``, or a bundled shape, against both addresses.

    ``changes`` are ``dotted.name=value`` of the experiment, such as ``workload.trace.rate_rps=4``, as YAML writes them.

    Raises:
        InputError: a change cannot be read, or the experiment is not usable with it.
    """
    arms = {"baseline": {"url": baseline}, "candidate": {"url": candidate}}
    form: dict[str, Any] = {
        "name": "two servers",
        "workload": dict(SYNTHETIC) if trace is None else {"trace": {"file": str(trace)}},
        "target": {"server": {"arms": arms}},
        "arms": {name: {"policy": "as_served"} for name in arms},
        "run_limit_s": 7200,
    }
    return parse(ExperimentSpec, changed(form, changes))


def changed(form: dict[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """``form`` with ``changes`` made to it, each ``dotted.name=value``, as YAML writes values.

    Raises:
        InputError: a change cannot be read.
    """
    for change in changes:
        _apply(form, change)
    return form


def _apply(form: dict[str, Any], change: str) -> None:
    name, mark, value = change.partition("=")
    *path, last = name.strip().split(".")
    if not mark or not all(path) or not last:
        raise InputError([Problem("--set", f"{change!r}: write a name and a value, such as repeats=10")])
    here = form
    for part in path:
        here = here.setdefault(part, {})
        if not isinstance(here, dict):
            raise InputError([Problem("--set", f"{name}: {part} has no parts")])
    here[last] = load_yaml(value)
