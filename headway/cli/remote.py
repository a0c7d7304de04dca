"""Commands that change something on a server, and watching."""

import sys
from typing import Annotated, Any

import typer

from headway.cli.options import ExperimentFile, ExperimentId, Json, Token, Url
from headway.cli.output import as_json, duration, say

ERROR = 1


def login(
    url: Annotated[str, typer.Argument(help="Address of the server.")],
    token: Annotated[
        str | None, typer.Option(help="API token; absent: asked for, or a line of standard input.")
    ] = None,
) -> None:
    """Remember a server and a token, after trying them."""
    from headway.client import Client
    from headway.config import Connection, save

    secret = token or _token_given()
    chosen = Connection(url.rstrip("/"), secret.strip())
    with Client(chosen) as client:
        me = client.get("/me")
    path = save(chosen)
    may = "may only look" if me["token"] and me["token"]["read_only"] else "may look and change"
    say(f"{me['username']} at {chosen.url}: the token {may}. Kept in {path}")


def _token_given() -> str:
    """From a prompt that does not show it, or a line of standard input where that is no terminal."""
    if sys.stdin.isatty():
        return str(typer.prompt("API token (from the account page)", hide_input=True, err=True))
    return sys.stdin.readline()


def submit(
    file: ExperimentFile,
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Follow to the verdict; its exit status is ours.")] = False,
    key: Annotated[str | None, typer.Option(help="Idempotency key; absent: a fresh one.")] = None,
    as_data: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Submit an experiment; a trace file it names is imported first."""
    from headway import specfile
    from headway.client import Client
    from headway.config import connection

    data = specfile.read(file)
    with Client(connection(url=url, token=token)) as client:
        data, dataset = specfile.upload_trace(client, data, file.resolve().parent)
        if dataset is not None:
            say(f"trace imported as {dataset['id']}: {dataset['inspection']['rows']} rows, {dataset['format']}")
        experiment = client.post("/experiments", data, key=key)
        say(f"submitted {experiment['id']}: {len(experiment['runs'])} runs, plan {experiment['plan_digest']}")
        if wait:
            raise typer.Exit(follow_to_end(client, experiment["id"], as_data=as_data))
    if as_data:
        as_json(experiment)
    else:
        print(experiment["id"])


def check(file: ExperimentFile, *, as_data: Json = False, url: Url = None, token: Token = None) -> None:
    """Check an experiment file on the server without submitting it."""
    from headway import specfile
    from headway.client import Client
    from headway.config import connection

    with Client(connection(url=url, token=token)) as client:
        data, _ = specfile.upload_trace(client, specfile.read(file), file.resolve().parent)
        found = client.post("/experiments/check", data)
    if as_data:
        as_json(found)
    else:
        plan = found["plan"]
        print(f"good: {len(found['runs'])} runs of {plan['requests']} requests, plan {plan['digest']}")


def watch(experiment: ExperimentId, *, as_data: Json = False, url: Url = None, token: Token = None) -> None:
    """Follow an experiment to its verdict. Exit status: that of the verdict."""
    from headway.client import Client
    from headway.config import connection

    with Client(connection(url=url, token=token)) as client:
        raise typer.Exit(follow_to_end(client, experiment, as_data=as_data))


def cancel(
    identifier: Annotated[str, typer.Argument(metavar="ID", help="Experiment (exp_...) or run (run_...).")],
    *,
    as_data: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Cancel an experiment or a run; what was measured is kept."""
    _act(identifier, "cancel", as_data=as_data, url=url, token=token)


def retry(
    identifier: Annotated[str, typer.Argument(metavar="ID", help="Run, such as run_7k2m...")],
    *,
    as_data: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Queue an ended run again."""
    if not identifier.startswith("run_"):
        raise typer.BadParameter(
            f"{identifier!r} is no run; give one such as run_7k2m... (headway show lists them)", param_hint="ID"
        )
    _act(identifier, "retry", as_data=as_data, url=url, token=token)


def _act(identifier: str, action: str, *, as_data: bool, url: str | None, token: str | None) -> None:
    from headway.client import Client
    from headway.config import connection

    kind = "runs" if identifier.startswith("run_") else "experiments"
    with Client(connection(url=url, token=token)) as client:
        found = client.post(f"/{kind}/{identifier}/{action}")
    if as_data:
        as_json(found)
    else:
        print(f"{found['id']}: {found.get('state') or found['status']}")


def follow_to_end(client: Any, experiment_id: str, *, as_data: bool) -> int:
    """Show an experiment until it ends, then its verdict; the exit status. Ctrl-C only stops looking."""
    from headway.cli.board import Board
    from headway.follow import follow

    view = None
    try:
        with Board() as board:
            for view in follow(client, experiment_id):
                board.show(view)
    except KeyboardInterrupt:
        say(f"Detached; the experiment goes on. Look again with: headway watch {experiment_id}")
        return 130
    assert view is not None  # follow gives at least one view
    return print_end(view.experiment, as_data=as_data)


def print_end(experiment: dict[str, Any], *, as_data: bool) -> int:
    """Print how an experiment ended; the exit status."""
    verdict = experiment["verdict"]
    if as_data:
        as_json(experiment)
    elif verdict is not None:
        from scheduler_core.spec.parse import parse
        from scheduler_core.verdict.schema import Verdict
        from scheduler_core.verdict.text import render

        print(render(parse(Verdict, verdict)))
    else:
        say(f"{experiment['status']}: {experiment['reason'] or 'no verdict'}")
    return ERROR if verdict is None else int(verdict["exit_code"])


def about(seconds: float | None) -> str:
    """``, about 8 s left`` or nothing."""
    return "" if seconds is None else f", about {duration(seconds)} left"
