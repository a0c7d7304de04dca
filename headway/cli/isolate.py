"""The isolation command."""

from pathlib import Path
from typing import Annotated, Any

import typer

from headway.cli.options import ExperimentFile, Json, Report
from headway.cli.verdicts import Telling


def isolate(
    file: ExperimentFile,
    *,
    of: Annotated[
        str | None, typer.Option(help="Whose requests stay as they are, such as 'tier chat' or 'tenant a'.")
    ] = None,
    others: Annotated[
        str, typer.Option(help="How many times over everybody else sends, in the two runs: 0,1 is alone and beside.")
    ] = "0,1",
    metric: Annotated[str, typer.Option(help="Tail that is compared, such as ttft_p99_ms.")] = "ttft_p95_ms",
    evidence: Annotated[Path | None, typer.Option(help="Keep records and tables in this folder.")] = None,
    report: Report = None,
    as_data: Json = False,
) -> None:
    """Find how much one tenant or tier feels of the others, under each arm, here. Exit status: that of the verdict.

    A file with a section ``isolation`` is also what ``headway submit`` takes.
    """
    from headway import specfile
    from headway.cli.local import play_here

    data = specfile.read(file)
    if of is not None:
        data = {**data, "isolation": _form(of, others, metric)}
    elif "isolation" not in data:
        raise typer.BadParameter("say whose, or write a section isolation into the file", param_hint="--of")
    play_here(data, file, Telling(report=report, as_data=as_data), evidence=evidence)


def _form(of: str, others: str, metric: str) -> dict[str, Any]:
    """The section ``isolation``; the spec refuses what is neither a tenant nor a tier."""
    kind, _, name = of.partition(" ")
    if kind not in ("tenant", "tier") or not name:
        raise typer.BadParameter(f"{of!r}: write 'tenant NAME' or 'tier NAME'", param_hint="--of")
    return {kind: name, "others": others.split(","), "metric": metric}
