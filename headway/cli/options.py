"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Url = Annotated[str | None, typer.Option("--url", help="Address of the server. [HEADWAY_URL]")]
Token = Annotated[str | None, typer.Option("--token", help="API token; better in HEADWAY_TOKEN. [HEADWAY_TOKEN]")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ExperimentFile = Annotated[Path, typer.Argument(metavar="FILE", help="Experiment file (YAML or JSON).")]
ExperimentId = Annotated[str, typer.Argument(metavar="ID", help="Experiment, such as exp_7k2m...")]
Junit = Annotated[Path | None, typer.Option("--junit", help="Write the verdict as JUnit XML to this file, too.")]
Report = Annotated[Path | None, typer.Option("--report", help="Write a page that opens offline to this file, too.")]
PullRequest = Annotated[bool, typer.Option("--pr", help="Print the verdict as text for a pull request.")]
Write = Annotated[
    list[Path] | None,
    typer.Option(help="Write the result to this file, too: .xml (JUnit), .html, .prom (Prometheus), .json or .md."),
]
Formulas = Annotated[
    str | None,
    typer.Option(
        "--formulas",
        metavar="TOOL",
        help="Show the figures by this tool's formulas beside Headway's: guidellm, vllm-bench, sglang-bench, "
        "inference-perf, genai-bench or aiperf.",
    ),
]
