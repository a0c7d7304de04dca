"""Trace files out of logs and fitted clients."""

import json
import secrets
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.output import say
from headway.config import config_file
from scheduler_core.workload.logs.rows import ReadLog


def convert(
    log: Annotated[Path, typer.Argument(help="Log file.")],
    trace: Annotated[Path, typer.Argument(help="Trace file to write, JSON lines.")],
    *,
    kind: Annotated[
        str,
        typer.Option(
            "--from",
            help="otlp (GenAI spans), litellm (gateway log), vllm or sglang (server log), dynamo (agent trace), "
            "llmservingsim-agentic (sessions of calls).",
        ),
    ],
) -> None:
    """Make a trace of a log. Prompt text becomes salted block identities and never leaves this machine."""
    from scheduler_core.verdict.wording import share
    from scheduler_core.workload.logs.readers import read_log

    found = read_log(log, kind, salt=_salt())
    for reason, left in found.skipped.items():
        say(f"left out: {reason} ({left})")
    if found.observed_hit_share is not None:
        say(f"the server found {share(found.observed_hit_share)} of the prompt tokens in its prefix cache")
    _write(found, trace)


def draw(
    clients: Annotated[Path, typer.Argument(help="Folder of NAME-trace.csv and NAME-dataset.json[.gz].")],
    trace: Annotated[Path, typer.Argument(help="Trace file to write, JSON lines.")],
    *,
    start_s: Annotated[int, typer.Option("--from-s", min=0, help="Second of the clients' time to begin at.")] = 0,
    length_s: Annotated[int, typer.Option("--for-s", min=1, help="Seconds to draw.")] = 3600,
    rate_scale: Annotated[float, typer.Option(min=1e-9, help="Multiply every rate.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="The same seed draws the same requests everywhere.")] = 0,
) -> None:
    """Draw a trace from fitted clients (ServeGen's form); each client is a tenant."""
    from scheduler_core.workload.clients import Span, draw_requests, read_clients
    from scheduler_core.workload.logs.rows import in_order

    span = Span(start_s, length_s, rate_scale)
    _write(in_order(draw_requests(read_clients(clients), span, seed=seed), {}, str(clients)), trace)


def _write(found: ReadLog, trace: Path) -> None:
    """The trace file, and the section of a workload that names it."""
    from scheduler_core.files import whole

    with whole(trace) as unfinished:
        unfinished.write_text("".join(f"{line}\n" for line in found.lines()), encoding="utf-8")
    say(f"wrote {len(found.requests)} requests to {trace}")
    print(f"trace: {json.dumps({'file': str(trace), **found.reading})}")


def _salt() -> bytes:
    """This person's own, made once: the same text has the same identity in all of their traces, and nowhere else."""
    path = config_file().with_name("trace-salt")
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(secrets.token_bytes(32))
    return path.read_bytes()
