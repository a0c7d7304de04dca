"""``headway profiles``: what a modelled target can run on."""

from typing import Annotated

import typer

from headway.cli.options import Json
from headway.cli.output import as_json, say, table


def profiles(
    name: Annotated[str, typer.Argument(help="A profile to show in full; absent: list them.")] = "",
    *,
    as_data: Json = False,
) -> None:
    """List the profiles of modelled targets, or show one: calibrated, bundled, or from public specifications."""
    from headway.profiles import choose, kept
    from scheduler_core.spec.profiles import reference_profiles
    from scheduler_core.spec.roofline import names, roofline_profile

    if name:
        as_json(choose(name, "NAME")[0].canonical())
        return
    known = [*kept(), *reference_profiles(), *(roofline_profile(public, where="NAME") for public in names())]
    if as_data:
        as_json([profile.canonical() for profile in known])
        return
    table(
        ["name", "model", "device", "kind", "KV blocks"],
        [[p.name, p.model, p.device, p.kind, str(p.kv_blocks)] for p in known],
    )
    say("MODEL@DEVICExN names any model on N devices in tensor parallel.")
