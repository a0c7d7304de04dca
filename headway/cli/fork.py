"""``headway fork``: one arm of an experiment, changed at a moment, beside itself unchanged."""

from pathlib import Path
from typing import Annotated, Any

import typer

from headway.cli.local import play_here
from headway.cli.options import ExperimentFile, Json, Junit
from headway.cli.verdicts import Telling


def fork(
    file: ExperimentFile,
    at_s: Annotated[float, typer.Option("--at", help="The moment, in seconds of the run.")],
    settings: Annotated[
        list[str], typer.Option("--set", help='A rule to change, such as "batch.token_budget=512"; may be repeated.')
    ],
    arm: Annotated[str, typer.Option(help="The arm to fork; absent: the baseline.")] = "",
    *,
    evidence: Annotated[Path | None, typer.Option(help="Keep records and tables in this folder.")] = None,
    as_data: Json = False,
    junit: Junit = None,
) -> None:
    """Play a modelled arm to a moment, change rules there, play both on, and compare from there.

    Exit status: that of the verdict. With nothing changed in effect, both runs are the same to the last decision.
    """
    from headway import specfile
    from scheduler_core.spec.experiment import ExperimentSpec
    from scheduler_core.spec.parse import parse
    from scheduler_core.types.errors import InputError, Problem

    spec = parse(ExperimentSpec, specfile.read(file))
    name = arm or spec.baseline
    if name not in spec.arms:
        raise InputError([Problem("--arm", f"there is no arm {name!r}; there are {', '.join(spec.arms)}")])
    changed = spec.arms[name].canonical()
    for setting in settings:
        _set(changed, setting)
    data = spec.forked(name, changed, at_s=at_s)
    play_here(data, file, Telling(junit, as_data=as_data), evidence=evidence)


def _set(policy: dict[str, Any], setting: str) -> None:
    """Write ``section.key=value`` into a policy; what a section does not have, the policy's own reading refuses."""
    from scheduler_core.spec.yamltext import load_mapping
    from scheduler_core.types.errors import InputError, Problem

    place, equals, text = setting.partition("=")
    section, dot, key = place.strip().partition(".")
    if not (equals and dot and isinstance(policy.get(section), dict)):
        sections = ", ".join(name for name, value in policy.items() if isinstance(value, dict))
        raise InputError([Problem("--set", f"{setting!r} is not like batch.size=16; sections are {sections}")])
    policy[section][key] = load_mapping(f"value: {text}")["value"]
