"""``headway compile``: the scheduler core as machine code."""

from headway.cli.output import say


def compile_core() -> None:
    """Compile the scheduler core's hot modules into this environment: simulations take a quarter to half the CPU time."""
    from headway.compiling import compile_core as make

    made = make()
    say("Machine code of these sources is there already." if made is None else f"Compiled into {made}")
