"""``headway policy``: what policies there are and take, a package to write one in, and what each must pass."""

from pathlib import Path
from typing import Annotated, Any

import typer

from headway.cli.options import Json
from headway.cli.output import as_json, say, table


def show(
    name: Annotated[str, typer.Argument(help="A policy to show with its settings; absent: list them.")] = "",
    *,
    as_data: Json = False,
) -> None:
    """List the policies there are, or show what one can be set to, with its defaults."""
    from scheduler_core.policies.registry import manifest_of, manifests

    if as_data:
        as_json(manifest_of(name).canonical() if name else [found.canonical() for found in manifests().values()])
        return
    if not name:
        table(
            ["name", "version", "what it is"],
            [[found.name, found.version, found.title] for found in manifests().values()],
        )
        say("headway policy show NAME tells what one can be set to.")
        return
    found = manifest_of(name)
    say(f"{found.title} ({found.citation})\n{found.summary}")
    defaults = found.defaults.canonical()
    table(
        ["setting", "default", "what it does"],
        [[setting, _default(defaults, setting), text] for setting, text in found.settable.items()],
    )


def _default(defaults: dict[str, Any], setting: str) -> str:
    section, _, key = setting.partition(".")
    value = defaults.get(section, {}).get(key)
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def new(
    name: Annotated[str, typer.Argument(help="Name of the policy, its module and its folder, such as short_first.")],
    folder: Annotated[Path, typer.Option("--in", help="Where to put it.")] = Path(),
) -> None:
    """Write a package with a policy to begin from: module, entry point, a test, and what to do next."""
    from headway.authoring import write_package

    made = write_package(name, folder)
    print(made)
    say(f"install it with: pip install --no-build-isolation -e {made}\nthen check it:   headway policy check {name}")


def check(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Policies; absent: all.")] = None,
) -> None:
    """Play seeded traffic through policies on small pools with every law checked. Exit status 0 when all conform."""
    from scheduler_core.policies.registry import manifest_of
    from scheduler_core.testing.conformance import main

    for name in names or ():
        manifest_of(name)
    raise typer.Exit(main(names or []))
