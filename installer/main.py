"""``bootstrap.py`` under a Python that is new enough: check, build, hand over."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from installer import environment
from installer.checks import InstallError


def main(argv: Sequence[str]) -> int:
    """Exit status 1 after one line why; on success the process becomes the command, run by the environment's Python."""
    parser = argparse.ArgumentParser(
        prog="bootstrap.py", description="Build the environment, then run a command in it."
    )
    parser.add_argument("--dev", action="store_true", help="with the tools of tests and checks")
    parser.add_argument("--need-port", type=int, help="check that this port is free before a long installation")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="arguments of the environment's Python")
    options = parser.parse_args(argv)
    try:
        wanted = environment.chosen(dict(os.environ))
        environment.ensure(wanted, dev=options.dev, port=options.need_port)
    except InstallError as error:
        print(f"headway: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nheadway: interrupted; the next start builds what is missing", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"headway: {error.filename or wanted.folder}: {error.strerror}", file=sys.stderr)
        return 1
    if options.command:
        hand_over(wanted, options.command)
    print(f"Ready: {wanted.python}")
    return 0


def hand_over(wanted: environment.Environment, command: Sequence[str]) -> NoReturn:
    """Become the command."""
    os.environ["VIRTUAL_ENV"] = str(wanted.folder)
    os.environ["PATH"] = f"{wanted.folder / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    os.execv(wanted.python, [str(wanted.python), *command])
