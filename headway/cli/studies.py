"""Commands of studies: guided plans, searches and predictions, here or on a server."""

from pathlib import Path
from typing import Annotated, Any

import typer

from headway.cli.options import Json, Report, Token, Url
from headway.cli.output import as_json, say, table

StudyFile = Annotated[Path, typer.Argument(metavar="FILE", help="Study file (YAML or JSON).")]
Submit = Annotated[bool, typer.Option("--submit", help="Hand it to the server instead of playing it here.")]


def guided(
    file: StudyFile,
    *,
    submit: Submit = False,
    report: Report = None,
    as_data: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Tune a policy layer by layer, each stage from what the one before accepted. Exit status: the last verdict's."""
    from headway import specfile
    from headway.cli.progress import PlayProgress
    from headway.studies import play_guided
    from scheduler_core.spec.parse import parse
    from scheduler_core.spec.studies import GuidedSpec

    data = specfile.read(file)
    if submit:
        _submit("guided", data, file, as_data=as_data, server=(url, token))
        return
    spec = parse(GuidedSpec, data)
    with PlayProgress(spec.name) as progress:
        found = play_guided(spec, base=file.resolve().parent, on_step=progress)
    _print(found, report=report, as_data=as_data)


def search(
    file: StudyFile,
    *,
    submit: Submit = False,
    report: Report = None,
    as_data: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Search for policies on the modelled target and have the best confirmed. Exit status: the confirmation's."""
    from headway import specfile
    from headway.cli.progress import PlayProgress
    from headway.studies import play_search
    from scheduler_core.spec.parse import parse
    from scheduler_core.spec.studies import SearchSpec

    data = specfile.read(file)
    if submit:
        _submit("search", data, file, as_data=as_data, server=(url, token))
        return
    spec = parse(SearchSpec, data)
    with PlayProgress(spec.name) as progress:
        found = play_search(spec, base=file.resolve().parent, on_policy=progress.policies, on_step=progress)
    _print(found, report=report, as_data=as_data)


def predict(
    file: StudyFile,
    profile: Annotated[str, typer.Option(help="Profile to predict with; absent: the file's, or the newest.")] = "",
    evidence: Annotated[
        Path, typer.Option(help="Folder for the prediction, written down first, and the runs that measure.")
    ] = Path("prediction"),
    *,
    submit: Submit = False,
    report: Report = None,
    as_data: Json = False,
) -> None:
    """Predict how much each arm carries, then measure it. FILE is an experiment with loads to sweep.

    Exit status: that of the measurement's verdict.
    """
    from headway import specfile
    from headway.cli.progress import PlayProgress
    from headway.studies import play_prediction
    from scheduler_core.spec.parse import parse
    from scheduler_core.spec.studies import PredictionSpec

    data = specfile.read(file)
    data = dict(data) if "experiment" in data else {"experiment": data}
    data |= {"profile": profile} if profile else {}
    if submit:
        _submit("predict", data, file, as_data=as_data, server=(None, None))
        return
    spec = parse(PredictionSpec, data)
    with PlayProgress(spec.name) as progress:
        found = play_prediction(spec, base=file.resolve().parent, on_step=progress, evidence=evidence)
    _print(found, report=report, as_data=as_data)


def study(
    identifier: Annotated[str | None, typer.Argument(metavar="ID", help="Study (std_...); absent: all.")] = None,
    *,
    as_data: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """List the studies of a server, or show one: its stages and what it found."""
    from headway.client import Client
    from headway.config import connection

    with Client(connection(url=url, token=token)) as client:
        if identifier is None:
            rows = list(client.pages("/studies", at_most=100))
        else:
            found = client.get(f"/studies/{identifier}")
    if as_data:
        as_json(rows if identifier is None else found)
    elif identifier is None:
        cells = [[row["id"], row["kind"], row["name"], row["status"], row["reason"]] for row in rows]
        table(["id", "kind", "name", "status", "reason"], cells)
    else:
        _show(found)


def _show(found: dict[str, Any]) -> None:
    print(f"{found['name']} ({found['id']}), {found['kind']}, {found['status']}")
    if found["reason"]:
        print(f"  {found['reason']}")
    if found["result"] is not None:
        print(f"  {found['result']['sentence']}")
    rows = [
        [str(stage["number"] + 1), stage["title"], stage["experiment"], stage["status"]] for stage in found["stages"]
    ]
    table(["stage", "title", "experiment", "status"], rows)
    for line in found["report"]:
        print(f"  {line}")


def _submit(
    kind: str, data: dict[str, Any], file: Path, *, as_data: bool, server: tuple[str | None, str | None]
) -> None:
    from headway import specfile
    from headway.client import Client
    from headway.config import connection

    with Client(connection(url=server[0], token=server[1])) as client:
        inner = data["experiment"] if kind == "predict" else data
        inner, _ = specfile.upload_trace(client, inner, file.resolve().parent)
        data = {**data, "experiment": inner} if kind == "predict" else inner
        found = client.post(f"/studies/{kind}", data)
    say(f"submitted {found['id']}; look again with: headway study {found['id']}")
    if as_data:
        as_json(found)
    else:
        print(found["id"])


def _print(found: Any, *, report: Path | None, as_data: bool) -> None:
    """The result, as the page of ``report`` too; leaves with its exit status."""
    from scheduler_core.files import whole
    from scheduler_core.verdict.report.study import search_rows, study_page
    from scheduler_core.verdict.text import render

    if report is not None:
        with whole(report) as unfinished:
            text = study_page(found.name, found.report, found.verdicts, found.runs, found.search)
            unfinished.write_text(text, encoding="utf-8")
        say(f"wrote {report}")
    if as_data:
        as_json(found.as_json())
    else:
        if found.search is not None:
            print(found.search.sentence)
            shown = search_rows(found.search)[:20]
            table(["policy", *found.search.objectives, ""], [list(row) for row in shown])
        for line in found.report:
            print(line)
        for verdict in found.verdicts[-1:]:
            print(render(verdict))
    raise typer.Exit(found.exit_code)
