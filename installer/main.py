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
    options, command = split(argv)
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
    if command:
        hand_over(wanted, command)
    print(f"Ready: {wanted.python}")
    return 0


def split(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Our own options, and from the first other word on the command (which may begin with ``-m`` or ``-c``)."""
    parser = argparse.ArgumentParser(
        prog="bootstrap.py",
        usage="%(prog)s [--dev] [--need-port PORT] [COMMAND ...]",
        description="Build the environment, then run COMMAND (arguments of its Python) in it.",
    )
    parser.add_argument("--dev", action="store_true", help="with the tools of tests and checks")
    parser.add_argument(
        "--need-port", type=port, metavar="PORT", help="check that this port is free before a long installation"
    )
    words = list(argv)
    place = 0
    while place < len(words) and words[place] in ("--dev", "--need-port", "-h", "--help"):
        place += 2 if words[place] == "--need-port" else 1
    return parser.parse_args(words[:place]), words[place:]


def port(text: str) -> int:
    """A TCP port; `argparse` shows the error's text."""
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is no port; give 1 to 65535, such as PORT=8001")
    return int(text)


def hand_over(wanted: environment.Environment, command: Sequence[str]) -> NoReturn:
    """Become the command."""
    os.environ["VIRTUAL_ENV"] = str(wanted.folder)
    os.environ["PATH"] = f"{wanted.folder / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    os.execv(wanted.python, [str(wanted.python), *command])
