"""The common command line of every benchmark, and the rule that a figure's name carries its unit.

A benchmark is a module ``bench/NAME.py`` that ends with::

    if __name__ == "__main__":
        sys.exit(harness.main("NAME", quick=quick, full=full))

where ``quick`` and ``full`` take nothing and return `Figures`. Standard output holds the answer alone; progress goes to
standard error through `say`.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from scheduler_core import compiled

Figures = Mapping[str, Any]
"""Figure name to value: a number (unit in the name), a truth value, a text, None (not measurable here), or a nested
mapping or list of such, for instance per arm."""

QUICK_LIMIT_S = 50.0

UNITS = (
    "_ns", "_us", "_ms", "_s", "_h",
    "_bytes", "_kib", "_mib", "_gib", "_mb", "_gb",
    "_per_s", "_per_ms", "_rps", "_hz", "_gflops", "_gb_per_s",
    "_tokens", "_requests", "_steps", "_blocks", "_runs", "_rows", "_lines", "_events", "_processes", "_instances",
    "_share", "_ratio", "_pct", "_x", "_count", "_error", "_spread", "_overhead",
)  # fmt: skip


class UnitError(ValueError):
    """A numeric figure whose name contains no unit of `UNITS`."""


def say(text: str) -> None:
    """Report progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def names_unit(name: str) -> bool:
    """Whether ``name`` contains a unit of `UNITS` as a whole, with or without a qualifier after it."""
    words = f"_{name.replace('.', '_')}_"
    return any(f"{unit}_" in words for unit in UNITS)


def check_units(figures: Figures, at: str = "", counts: frozenset[str] = frozenset()) -> None:
    """Raise `UnitError` when a number's own name, or that of the mapping or list that holds it, names no unit.

    Names in ``counts`` say themselves what they count and need none.
    """
    for name, value in figures.items():
        if name in counts:
            continue
        where = f"{at}.{name}" if at else name
        if isinstance(value, Mapping):
            if not names_unit(where):
                check_units(value, where)
            continue
        values = value if isinstance(value, list | tuple) else [value]
        for item in values:
            if isinstance(item, Mapping):
                check_units(item, where)
            elif isinstance(item, int | float) and not isinstance(item, bool) and not names_unit(where):
                raise UnitError(f"figure {where!r} names no unit; put one in it of {', '.join(UNITS)}")


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "system": platform.system(),
        "arch": platform.machine(),
        "python": platform.python_version(),
        "cpu": _cpu_model(),
        "cores_count": len(affinity(0)) if affinity else os.cpu_count(),
        "core": "machine code" if compiled.used() else "interpreted",
    }


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:  # noqa: PTH123 - a pseudo-file read line by line
            for line in info:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"


def compile_core(name: str) -> None:
    """Measure the core as machine code: with ``--full``, make it where there is none and start ``bench.NAME`` anew.

    Making it takes longer than a quick answer may. Without it the core is interpreted, as it is with
    ``HEADWAY_PURE=1``; the answer says which it was.
    """
    if os.environ.get(compiled.SWITCH) == "1" or compiled.used():
        return
    if "--full" not in sys.argv:
        say("the scheduler core is interpreted, two to four times as slow: `make compile` makes machine code of it")
        return
    from headway.compiling import CompileError, compile_core

    say("compiling the scheduler core, once for these sources; HEADWAY_PURE=1 measures it interpreted")
    try:
        made = compile_core()
    except CompileError as error:
        say(f"the scheduler core is interpreted: {error}")
        return
    if made is None:  # starting anew would end here again
        say("the scheduler core is interpreted: machine code of these sources is there, but it does not load")
        return
    os.execv(sys.executable, [sys.executable, "-m", f"bench.{name}", *sys.argv[1:]])


def main(
    name: str,
    *,
    quick: Callable[..., Figures],
    full: Callable[..., Figures] | None = None,
    argv: list[str] | None = None,
    counts: frozenset[str] = frozenset(),
    parts: Sequence[str] = (),
) -> int:
    """Run one benchmark from the command line and print its figures; the exit status is 0, or 1 with one line why.

    ``counts`` are figures whose names say what they count, such as ``right_answers``. With ``parts`` there is an option
    ``--only`` that takes some of them, and ``quick`` and ``full`` are given those as a set, empty for all.
    """
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=sys.modules["__main__"].__doc__)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--quick", action="store_true", help=f"answer within {QUICK_LIMIT_S:.0f} s (the default)")
    mode.add_argument("--full", action="store_true", help="measure properly")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    if parts:
        parser.add_argument("--only", default="", help=f"measure these alone, separated by commas: {', '.join(parts)}")
    options = parser.parse_args(argv)
    chosen = frozenset(filter(None, options.only.split(","))) if parts else frozenset[str]()
    if chosen - set(parts):
        parser.error(f"--only: there is no {', '.join(sorted(chosen - set(parts)))}; choose from {', '.join(parts)}")
    measure = (full or quick) if options.full else quick
    if parts:
        measure = partial(measure, chosen)
    began = time.monotonic()
    try:
        figures = dict(measure())
        check_units(figures, counts=counts)
    except Exception as error:
        if os.environ.get("HEADWAY_DEBUG"):
            raise
        print(f"bench.{name}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    answer = {
        "bench": name,
        "mode": "full" if options.full else "quick",
        "wall_s": round(time.monotonic() - began, 3),
        "machine": machine(),
        **figures,
    }
    print(json.dumps(answer) if options.json else "\n".join(lines(answer)), flush=True)
    return 0


def lines(figures: Figures, indent: str = "") -> list[str]:
    """Figures as aligned lines for a terminal."""
    width = max((len(name) for name in figures), default=0)
    out = []
    for name, value in figures.items():
        if isinstance(value, Mapping):
            out += [f"{indent}{name}", *lines(value, indent + "  ")]
        else:
            shown = f"{value:.6g}" if isinstance(value, float) else value
            out.append(f"{indent}{name:<{width}}  {shown}")
    return out
