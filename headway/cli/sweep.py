"""The load sweep command."""

from pathlib import Path
from typing import Annotated, Any

import typer

from headway.cli.options import ExperimentFile, Json, Report
from headway.cli.verdicts import Telling


def sweep(
    file: ExperimentFile,
    rates: Annotated[
        str | None,
        typer.Option(
            help="Loads to play, such as 2,4,6,8: requests/s, or users of a closed-loop workload. Absent: the file's."
        ),
    ] = None,
    *,
    target: Annotated[
        str | None, typer.Option(help="torch or modelled with its defaults, instead of the file's target.")
    ] = None,
    attainment: Annotated[
        float | None, typer.Option(min=0.01, max=1, help="Share of requests that must meet their objectives.")
    ] = None,
    evidence: Annotated[Path | None, typer.Option(help="Keep records and tables in this folder.")] = None,
    report: Report = None,
    as_data: Json = False,
) -> None:
    """Find how much load each arm carries at its objectives, here. Exit status: that of the verdict.

    A file with a section ``sweep`` is also what ``headway submit`` takes.
    """
    from headway import specfile
    from headway.cli.local import play_here

    data = specfile.read(file)
    given = data.get("target")
    if target is not None and not (isinstance(given, dict) and target in given):
        data = {**data, "target": {target: {}}}
    data = {**data, "sweep": _sweep_form(data.get("sweep"), rates, attainment)}
    play_here(data, file, Telling(report=report, as_data=as_data), evidence=evidence)


def _sweep_form(given: Any, rates: str | None, attainment: float | None) -> dict[str, Any]:
    """The file's sweep with what the options say instead."""
    form = dict(given) if isinstance(given, dict) else {}
    if rates is not None:
        form["loads"] = _loads(rates)
    if attainment is not None:
        form["attainment"] = attainment
    return form


def _loads(text: str) -> list[float]:
    """``2,4,6`` as numbers."""
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise typer.BadParameter("write numbers such as 2,4,6,8", param_hint="--rates") from None
