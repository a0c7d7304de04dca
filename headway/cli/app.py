"""All commands, gathered."""

import typer

from headway.cli import (
    calibrate,
    compare,
    compiling,
    demo,
    fork,
    isolate,
    judge,
    local,
    path,
    policies,
    profiles,
    remote,
    show,
    studies,
    sweep,
    traces,
    trust,
)

app = typer.Typer(
    help="Decide how to schedule LLM serving, with evidence.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
trace = typer.Typer(help="Look at trace files, and make them.", no_args_is_help=True, rich_markup_mode=None)

policy = typer.Typer(help="See what policies there are; write your own.", no_args_is_help=True, rich_markup_mode=None)

app.command("play")(local.play)
app.command("judge")(judge.judge)
app.command("compare")(compare.compare)
app.command("sweep")(sweep.sweep)
app.command("isolate")(isolate.isolate)
app.command("guided")(studies.guided)
app.command("search")(studies.search)
app.command("predict")(studies.predict)
app.command("study")(studies.study)
app.command("fork")(fork.fork)
app.command("calibrate")(calibrate.calibrate)
app.command("compile")(compiling.compile_core)
app.command("profiles")(profiles.profiles)
trace.command("inspect")(local.trace_inspect)
trace.command("convert")(traces.convert)
trace.command("draw")(traces.draw)
app.add_typer(trace, name="trace")
policy.command("show")(policies.show)
policy.command("new")(policies.new)
policy.command("check")(policies.check)
app.add_typer(policy, name="policy")
app.command("login")(remote.login)
app.command("submit")(remote.submit)
app.command("check")(remote.check)
app.command("list")(show.list_experiments)
app.command("show")(show.show)
app.command("trust")(trust.trust)
app.command("path")(path.path)
app.command("watch")(remote.watch)
app.command("cancel")(remote.cancel)
app.command("retry")(remote.retry)
app.command("next")(show.next_step)
app.command("export")(show.export)
app.command("open")(show.open_page)
app.command("demo")(demo.demo)


@trace.callback()
def _trace() -> None:
    """Look at trace files."""
