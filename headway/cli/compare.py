"""A verdict on two running servers, in one line and with no server of ours."""

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.options import PullRequest, Write
from headway.cli.output import say
from headway.cli.verdicts import print_verdict, write_by_ending


def compare(
    baseline: Annotated[str, typer.Argument(metavar="URL_A", help="The server in use, such as http://127.0.0.1:8000.")],
    candidate: Annotated[str, typer.Argument(metavar="URL_B", help="The server that may replace it.")],
    *,
    trace: Annotated[Path | None, typer.Option(help="Traffic to replay; absent: a bundled shape.")] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any setting of the experiment, such as repeats=10."),
    ] = None,
    write: Write = None,
    evidence: Annotated[Path | None, typer.Option(help="Keep records and tables in this folder.")] = None,
    pull_request: PullRequest = False,
) -> None:
    """Play the same traffic against two servers and judge. Exit status: that of the verdict.

    A key for both is taken from HEADWAY_API_KEY.
    """
    from headway.cli.progress import PlayProgress
    from headway.compare import comparison
    from headway.play import play

    spec = comparison(baseline, candidate, trace, changes or ())
    with PlayProgress(spec.name) as progress:
        played = play(spec, base=Path(), on_step=progress, evidence=evidence)
    verdict = played.verdict
    assert verdict is not None  # play raises when there is none
    for note in played.notes:
        say(note)
    for failure in played.failures:
        say(f"failed: {failure['arm']}, repeat {failure['repeat'] + 1}: {failure['reason']}")
    write_by_ending(write or (), verdict, played.runs)
    print_verdict(verdict, pull_request=pull_request)
    raise typer.Exit(verdict.exit_code)
