"""``headway demo``: calibrate, size, submit, follow to the verdict."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from headway.cli.options import Token, Url
from headway.cli.output import say


def demo(
    trace: Annotated[
        Path | None, typer.Option(help="Play rows of this trace file instead of synthetic traffic. [TRACE]")
    ] = None,
    url: Url = None,
    token: Token = None,
) -> None:
    """Size the demo experiment to this machine, submit it and follow it to its verdict."""
    from headway import demo as demo_experiment
    from headway.cli.remote import follow_to_end
    from headway.client import Client
    from headway.config import connection
    from headway.specfile import upload_trace

    file = trace or (Path(os.environ["TRACE"]) if os.environ.get("TRACE") else None)
    rows = None if file is None else _read_trace(file.expanduser().resolve())
    with Client(connection(url=url, token=token)) as client:
        client.get("/me")  # before minutes of work: is the server there, and the token good?
        profile = _calibrate()
        say(f"Calibrated: {profile.device}, held-out error {profile.held_out_error_share:.1%}.")
        made = demo_experiment.build(profile, trace=rows, file=None if file is None else file.expanduser().resolve())
        _tell(made)
        data, _ = upload_trace(client, _submittable(made.experiment.canonical()), Path.cwd())
        client.post("/profiles", profile.canonical())
        experiment = client.post("/experiments", data)
        say(f"Watch it live: {client.connection.url}/experiments/{experiment['id']}/")
        raise typer.Exit(follow_to_end(client, experiment["id"], as_data=False))


def _read_trace(file: Path) -> Any:
    from scheduler_core.spec.workload import Trace
    from scheduler_core.types.errors import InputError, Problem
    from scheduler_core.workload.traces.reader import read_trace

    if not file.is_file():
        raise InputError([Problem("TRACE", f"there is no file {file}")])
    return read_trace(file, Trace(file=str(file)))


def _calibrate() -> Any:
    from headway import demo as demo_experiment
    from headway.calibration import calibrate
    from headway.cli.progress import CalibrationProgress

    say("Calibrating this machine, so that the demo asks of it what it can do.")
    with CalibrationProgress() as progress:
        return calibrate(name="demo", target=demo_experiment.target(), quick=True, on_progress=progress)


def _tell(made: Any) -> None:
    size = made.size
    say(f"Traffic: {made.traffic}.")
    say(
        f"Size: {size.requests} requests a run at {size.rate_rps:g} per second, lengths x {size.lengths_scale:g}; "
        f"that is {size.load_share:.0%} of the {size.capacity_rps:.3g} per second this machine can serve."
    )
    arms = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in size.run_s.items())
    say(f"Expected seconds of a run: {arms}. {len(made.experiment.runs())} runs, interleaved.")


def _submittable(data: dict[str, Any]) -> dict[str, Any]:
    """Without what a server must find out itself: absent fields of a trace are left out."""
    trace = data["workload"].get("trace")
    if trace:
        data["workload"]["trace"] = {name: value for name, value in trace.items() if value is not None}
    return data
