"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Url = Annotated[str | None, typer.Option("--url", help="Address of the server. [HEADWAY_URL]")]
Token = Annotated[str | None, typer.Option("--token", help="API token; better in HEADWAY_TOKEN. [HEADWAY_TOKEN]")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ExperimentFile = Annotated[Path, typer.Argument(metavar="FILE", help="Experiment file (YAML or JSON).")]
ExperimentId = Annotated[str, typer.Argument(metavar="ID", help="Experiment, such as exp_7k2m...")]
