"""Where the time of one request went, in a terminal."""

from typing import Annotated, Any

import typer

from headway.cli.options import Json, Token, Url
from headway.cli.output import as_json, say, table


def path(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run (run_...) of an installation.")],
    request: Annotated[int | None, typer.Argument(min=0, help="Number of the request; absent: the slowest.")] = None,
    *,
    as_data: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Show the critical path of a request: exposed and hidden time by kind, and what removing each would save."""
    from headway.client import Client
    from headway.config import connection
    from scheduler_core.types.errors import InputError, Problem

    with Client(connection(url=url, token=token)) as client:
        if request is None:
            rows = client.get(f"/runs/{run}/requests")
            if not rows:
                raise InputError([Problem(run, "no request of this run ended with a token")])
            request = rows[0]["request"]
        found: dict[str, Any] = client.get(f"/runs/{run}/requests/{request}/path")
    if as_data:
        as_json(found)
        return
    say(f"request {found['request']}: {found['elapsed_ms']:,.1f} ms from arrival to last token")
    table(
        ["spent on", "on the path, ms", "hidden, ms", "without it, sooner by ms"],
        [
            [part["kind"], *(f"{part[name]:,.1f}" for name in ("exposed_ms", "hidden_ms", "would_shorten_ms"))]
            for part in found["parts"]
        ],
    )
