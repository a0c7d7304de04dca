"""The load sweep command."""

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import ExperimentFile, Json
from headway.cli.output import as_json, say


def sweep(
    file: ExperimentFile,
    rates: Annotated[
        str, typer.Option(help="Loads to play, such as 2,4,6,8: requests/s, or users of a closed-loop workload.")
    ],
    *,
    target: Annotated[
        str | None, typer.Option(help="torch or modelled with its defaults, instead of the file's target.")
    ] = None,
    attainment: Annotated[
        float, typer.Option(min=0.01, max=1, help="Share of requests that must meet their objectives.")
    ] = 0.95,
    evidence: Annotated[Path | None, typer.Option(help="Keep records and tables in this folder.")] = None,
    as_data: Json = False,
) -> None:
    """Find how much load each arm carries at its objectives, here. Exit status: that of the verdict."""
    from headway import specfile
    from headway.cli.progress import SweepProgress
    from headway.sweep import sweep as play_sweep
    from scheduler_core.spec.experiment import ExperimentSpec
    from scheduler_core.spec.parse import parse
    from scheduler_core.verdict.text import sweep_text

    data = specfile.read(file)
    given = data.get("target")
    if target is not None and not (isinstance(given, dict) and target in given):
        data = {**data, "target": {target: {}}}
    spec, loads = parse(ExperimentSpec, data), _loads(rates)
    with SweepProgress(spec.name) as progress:
        swept = play_sweep(
            spec, loads, base=file.resolve().parent, on_step=progress, attainment=attainment, evidence=evidence
        )
    for note in swept.notes:
        say(note)
    if as_data:
        as_json(swept.as_json())
    else:
        print("\n".join(sweep_text(verdict) for verdict in swept.verdicts), end="")
    raise typer.Exit(swept.exit_code)


def _loads(text: str) -> list[float]:
    """``2,4,6`` as numbers."""
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise typer.BadParameter("write numbers such as 2,4,6,8", param_hint="--rates") from None
