"""A verdict on result files of other load tools, with no server."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli.options import Formulas, Json, PullRequest, Write
from headway.cli.output import say
from headway.cli.verdicts import Telling, tell, write_by_ending

if TYPE_CHECKING:
    from scheduler_core.verdict.elsewhere import Judged


def judge(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="ARM=FILE...",
            help="Result files by arm: first repeat first. Compared with the arm named baseline, or the first.",
        ),
    ],
    *,
    tool: Annotated[str | None, typer.Option(help="Tool that wrote the files; absent: found out.")] = None,
    goal: Annotated[Path | None, typer.Option(help="YAML file of a goal, or of an experiment that has one.")] = None,
    write: Write = None,
    pull_request: PullRequest = False,
    formulas: Formulas = None,
    as_data: Json = False,
) -> None:
    """Judge results measured elsewhere (GuideLLM, AIPerf, vLLM, SGLang, ...). Exit status: that of the verdict."""
    from scheduler_core.spec.parse import parse
    from scheduler_core.verdict.elsewhere import MeasuredSpec, judge_measured

    telling = Telling(formulas=formulas, pull_request=pull_request, as_data=as_data)
    telling.check()
    data: dict[str, Any] = {"arms": _arms(files), "tool": tool}
    if goal is not None:
        data["goal"] = _goal(goal)
    judged = judge_measured(parse(MeasuredSpec, data), Path())
    for note in judged.notes:
        say(note)
    write_by_ending(write or (), judged.verdict, judged.runs)
    tell(judged.verdict, judged.runs, telling, lambda: _as_json(judged))
    raise typer.Exit(judged.verdict.exit_code)


def _as_json(judged: "Judged") -> dict[str, Any]:
    return {
        "verdict": judged.verdict.canonical(),
        "runs": [run.canonical() for run in judged.runs],
        "notes": list(judged.notes),
    }


def _arms(files: list[str]) -> dict[str, list[str]]:
    arms: dict[str, list[str]] = {}
    for item in files:
        arm, mark, path = item.partition("=")
        if not mark or not path:
            raise typer.BadParameter(f"{item!r}: write ARM=FILE, such as baseline=run1.json", param_hint="ARM=FILE")
        arms.setdefault(arm, []).append(path)
    return arms


def _goal(path: Path) -> Any:
    from headway import specfile

    data = specfile.read(path)
    return data.get("goal", data)
