"""Commands that only look: list, show, export, open."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.formulas import print_formulas
from headway.cli.options import ExperimentId, Formulas, Json, Junit, PullRequest, Token, Url
from headway.cli.output import as_json, say, table

if TYPE_CHECKING:
    from headway.client import Client


def list_experiments(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Most rows.")] = 20,
    status: Annotated[str | None, typer.Option(help="queued, running, decided, failed or cancelled.")] = None,
    *,
    as_data: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """List experiments, newest first."""
    from headway.client import Client
    from headway.config import connection
    from scheduler_core.verdict.schema import EXIT_CODES, EXIT_NOT_COMPARABLE

    verdicts = {code: decision.value for decision, code in EXIT_CODES.items()} | {EXIT_NOT_COMPARABLE: "not comparable"}
    with Client(connection(url=url, token=token)) as client:
        rows = list(client.pages("/experiments", at_most=limit, status=status))
    if as_data:
        as_json(rows)
        return
    table(
        ["id", "name", "status", "runs", "verdict", "owner", "submitted"],
        [
            [
                row["id"],
                row["name"],
                row["status"],
                f"{row['runs_ended']}/{row['runs_total']}",
                verdicts.get(row["exit_code"], ""),
                row["owner"],
                row["created_at"][:16].replace("T", " "),
            ]
            for row in rows
        ],
    )


def show(
    identifier: Annotated[str, typer.Argument(metavar="ID", help="Experiment (exp_...) or run (run_...).")],
    *,
    formulas: Formulas = None,
    junit: Junit = None,
    pull_request: PullRequest = False,
    as_data: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Show one experiment: its runs and, when it has ended, its verdict; of a run its figures."""
    from headway.client import Client
    from headway.config import connection
    from headway.export import fetch, text

    figures = formulas is not None or identifier.startswith("run_")
    if figures and (junit is not None or pull_request):
        raise typer.BadParameter(
            "they tell the verdict of an experiment: not of a run, nor beside --formulas", param_hint="--junit, --pr"
        )
    with Client(connection(url=url, token=token)) as client:
        if figures:
            _figures(client, identifier, formulas, as_data=as_data)
            return
        found = client.get(f"/experiments/{identifier}")
        if junit is not None:
            say(f"{fetch(client, identifier, 'verdict.xml', junit)}: JUnit")
        if pull_request:
            print(text(client, identifier, "verdict.md"), end="")
            return
    if as_data:
        as_json(found)
    else:
        _print_experiment(found)


def _figures(client: "Client", identifier: str, formulas: str | None, *, as_data: bool) -> None:
    """Figures of a run, or of an experiment's arms, by another tool's formulas where one is named."""
    from scheduler_core.evidence.formulas.side_by_side import FormulaTable
    from scheduler_core.spec.parse import parse

    of_run = identifier.startswith("run_")
    found = client.get(f"/{'runs' if of_run else 'experiments'}/{identifier}/metrics", formulas=formulas)
    if as_data:
        as_json(found)
        return
    if of_run:
        _print_account(client.get(f"/runs/{identifier}"))
    print_formulas(parse(FormulaTable, found))


def _print_account(run: dict[str, Any]) -> None:
    """What became of a run's requests, and why some did not finish."""
    from scheduler_core.evidence.account import account

    print(f"{run['title']} ({run['id']}), {run['state']} {run['reason']}".rstrip())
    summary = run["summary"]
    if summary is not None and run["kind"] == "arm":
        print(account(summary["offered"], summary["outcomes"], summary.get("unsent", {})).sentence())
        for reason, count in summary.get("reasons", {}).items():
            print(f"  {count} {reason}")


def _print_experiment(found: dict[str, Any]) -> None:
    from headway.cli.remote import print_end

    print(f"{found['name']} ({found['id']}), {found['status']}, plan {found['plan_digest']}")
    rows = [
        [run["id"], run["arm"] if run["load"] is None else f"{run['arm']} at {run['load']:g}", str(run["repeat"] + 1),
         run["state"], run["reason"]]
        for run in found["runs"]
    ]  # fmt: skip
    table(["run", "arm", "repeat", "state", "reason"], rows)
    if found["verdict"] is not None:
        print_end(found, as_data=False)


def next_step(
    experiment: ExperimentId,
    number: Annotated[int, typer.Option("--number", min=1, help="Which of the offered experiments.")] = 1,
    url: Url = None,
    token: Token = None,
) -> None:
    """Print the next experiment that a verdict offers, as a file to submit: headway next ID > next.yaml."""
    from headway.client import Client
    from headway.config import connection
    from scheduler_core.spec.yamltext import dump_yaml
    from scheduler_core.types.errors import InputError, Problem

    with Client(connection(url=url, token=token)) as client:
        found = client.get(f"/experiments/{experiment}")
    verdict = found["verdict"] or {}
    judged = [*verdict.get("comparisons", []), *verdict.get("sweeps", []), *verdict.get("isolations", [])]
    offered = [step for item in judged for step in item["next_steps"] if step["experiment"]]
    if len(offered) < number:
        raise InputError([Problem(experiment, f"its verdict offers {len(offered)} next experiments")])
    chosen = offered[number - 1]
    say(f"{chosen['title']}: {chosen['because']}")
    print(dump_yaml(chosen["experiment"]), end="")


def export(
    identifier: Annotated[
        str, typer.Argument(metavar="ID", help="Experiment (exp_...), or run (run_...) with --only.")
    ],
    only: Annotated[
        str | None,
        typer.Option(
            help="One file made by the server: report.html; of an experiment verdict.md, verdict.xml; of a run "
            "timeline.json (Perfetto), requests.csv, steps.csv, gaps.csv, benchmark.json."
        ),
    ] = None,
    target: Annotated[
        Path | None, typer.Option("--to", help="New folder, or the file of --only; absent: named after the ID.")
    ] = None,
    url: Url = None,
    token: Token = None,
) -> None:
    """Download an experiment with the evidence of its runs, or one report, timeline or table."""
    from headway.client import Client
    from headway.config import connection
    from headway.export import export as download
    from headway.export import fetch
    from scheduler_core.types.errors import InputError, Problem

    with Client(connection(url=url, token=token)) as client:
        if only is not None:
            print(fetch(client, identifier, only, target or Path(f"{identifier}-{only}")))
            return
        if identifier.startswith("run_"):
            raise InputError([Problem(identifier, "is a run; say which file with --only, such as --only report.html")])
        folder = target or Path(identifier)
        count = download(client, identifier, folder)
    say(f"{count} files")
    print(folder)


def open_page(experiment: ExperimentId, url: Url = None, token: Token = None) -> None:
    """Open an experiment's page in the browser."""
    from headway.config import connection

    address = f"{connection(url=url, token=token).url}/experiments/{experiment}/"
    print(address)
    typer.launch(address)
