"""Commands that need no server: play, trace inspect."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from headway.cli.options import ExperimentFile, Formulas, Json, Junit, PullRequest, Report
from headway.cli.output import as_json, say
from headway.cli.verdicts import Telling, tell

REFUSED = 2


def play(
    file: ExperimentFile,
    *,
    as_data: Json = False,
    evidence: Annotated[Path | None, typer.Option(help="Keep records and tables in this folder.")] = None,
    junit: Junit = None,
    report: Report = None,
    pull_request: PullRequest = False,
    formulas: Formulas = None,
) -> None:
    """Play an experiment here, with no server, and judge it. Exit status: that of the verdict."""
    from headway import specfile

    telling = Telling(junit, report, formulas, pull_request=pull_request, as_data=as_data)
    play_here(specfile.read(file), file, telling, evidence=evidence)


def play_here(data: dict[str, Any], file: Path, telling: Telling, *, evidence: Path | None = None) -> None:
    """Play the experiment ``data`` of ``file`` in this process, tell its verdict, and exit with it."""
    from headway.cli.progress import PlayProgress
    from headway.play import play as play_experiment
    from scheduler_core.spec.experiment import ExperimentSpec
    from scheduler_core.spec.parse import parse

    telling.check()
    spec = parse(ExperimentSpec, data)
    with PlayProgress(spec.name) as progress:
        played = play_experiment(spec, base=file.resolve().parent, on_step=progress, evidence=evidence)
    verdict = played.verdict
    assert verdict is not None  # play raises when there is none
    for note in played.notes:
        say(note)
    for failure in played.failures:
        at = "" if failure["load"] is None else f" at {failure['load']:g}"
        say(f"failed: {failure['arm']}{at}, repeat {failure['repeat'] + 1}: {failure['reason']}")
    tell(verdict, played.runs, telling, played.as_json)
    raise typer.Exit(verdict.exit_code)


def trace_inspect(
    path: Annotated[Path, typer.Argument(help="Trace file.")],
    file_format: Annotated[str | None, typer.Option("--format", help="Format; absent: found out.")] = None,
    columns: Annotated[str | None, typer.Option(help='Of csv and jsonl: "arrival=t,prompt_tokens=in,...".')] = None,
    time_unit: Annotated[str | None, typer.Option(help="Unit of the arrival column: s, ms, us or ns.")] = None,
    block_size: Annotated[int | None, typer.Option(help="Tokens per prefix block id.")] = None,
    *,
    as_data: Json = False,
) -> None:
    """Say what a reader finds in a trace file. Exit status 0: usable; 2: refused, with the reasons."""
    from scheduler_core.types.errors import InputError
    from scheduler_core.workload.traces.inspection import inspect, refusal_report

    try:
        found = inspect(
            path,
            format=file_format,
            columns=_columns(columns),
            time_unit=time_unit,
            block_size=block_size,
        )
    except InputError as error:
        if as_data:
            as_json(refusal_report(error))
        else:
            say(f"refused: {error}")
        raise typer.Exit(REFUSED) from None
    data = found.model_dump(mode="json")
    if as_data:
        as_json(data)
        return
    for key, value in data.items():
        if value is not None and key != "rejected":
            print(f"{key:>20}  {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")
    for row in data["rejected"][:20]:
        print(f"{'rejected line':>20}  {row['line']}: {row['reason']}")


def _columns(text: str | None) -> dict[str, str] | None:
    """``arrival=t,prompt_tokens=in`` as a mapping."""
    if text is None:
        return None
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if not all(mark and name.strip() and value.strip() for name, mark, value in pairs):
        raise typer.BadParameter(
            "write pairs such as arrival=t,prompt_tokens=in,output_tokens=out", param_hint="--columns"
        )
    return {name.strip(): value.strip() for name, _, value in pairs}
