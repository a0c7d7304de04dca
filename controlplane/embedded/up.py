"""``manage.py up``: the whole stack on this machine.

It runs before Django's settings are loaded, because it makes the home folder that holds their secret key.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from controlplane.embedded import home, screen
from controlplane.embedded.supervisor import ROOT, Options, Supervisor


def main(argv: Sequence[str]) -> int:
    """Exit status: 0 after an orderly stop, 1 with one line why when it could not start or go on."""
    parser = argparse.ArgumentParser(prog="manage.py up", description="Start Headway on this machine.")
    parser.add_argument("--port", type=int, default=8000, help="port of the dashboard on the loopback address")
    parser.add_argument("--demo", action="store_true", help="submit the demo experiment and follow it to its verdict")
    parser.add_argument("--exit-after-demo", action="store_true", help="stop when the demo has ended, with its status")
    options = parser.parse_args(argv)
    if not 1 <= options.port <= 65535:
        parser.error(f"--port {options.port}: give 1 to 65535")
    place = home.locate(dict(os.environ), ROOT / ".headway")
    try:
        wanted = Options(options.port, demo=options.demo, exit_after_demo=options.exit_after_demo)
        return Supervisor(wanted, place, os.environ).run()
    except home.StartError as error:
        screen.complain(str(error))
    except OSError as error:
        if os.environ.get("HEADWAY_DEBUG"):
            raise
        screen.complain(f"{error.filename or place.root}: {error.strerror}")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
