#!/usr/bin/env python
"""First step of every make target: ``bootstrap.py [--dev] [--need-port N] [COMMAND ...]``.

Finds a Python that is new enough, builds the environment when it is missing or out of date, and hands over to its
Python with COMMAND. This file alone is written so that even Python 2.7 can read it and say one clear line.
"""

from __future__ import print_function

import os
import subprocess
import sys

LOWEST = (3, 11)
NEWER = ["python3.11", "python3.12", "python3.13", "python3.14"]


def works(command):
    """Whether ``command`` is a Python that is new enough."""
    probe = "import sys; sys.exit(sys.version_info[:2] < (%d, %d))" % LOWEST
    try:
        with open(os.devnull, "w") as nowhere:
            return subprocess.call([command, "-c", probe], stdout=nowhere, stderr=nowhere) == 0
    except OSError:
        return False


def main():
    """Exit status 1 after one line why; on success the process becomes COMMAND."""
    if os.name != "posix":
        print("headway: it runs on Linux and macOS; on Windows use WSL", file=sys.stderr)
        return 1
    if sys.version_info[:2] >= LOWEST:
        from installer.main import main as install

        return install(sys.argv[1:])
    for name in NEWER:
        if works(name):
            os.execvp(name, [name, os.path.abspath(__file__)] + sys.argv[1:])
    print(
        "headway: Python %d.%d or newer is needed; this is Python %d.%d (%s) and no newer one is on PATH. "
        "Install one, or name it: make PYTHON=/path/to/python3.11 ..."
        % (LOWEST + tuple(sys.version_info[:2]) + (sys.executable,)),
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
