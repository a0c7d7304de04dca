"""``headway policy``: a package to write a policy in, and the checks that every policy must pass."""

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.output import say


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
