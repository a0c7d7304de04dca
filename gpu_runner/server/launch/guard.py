"""``python guard.py STOP_S COMMAND...``: runs a command in this session and ends all of it when standard input closes.

A run that is killed cannot end the server that it started; this process, which only waits for the run's end of a pipe
to close, can. Standard library alone: it is started without site packages.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

LOOK_EVERY_S = 0.1


def main(arguments: list[str]) -> int:
    """Run the command; its exit status, or 128 + SIGTERM when it was ended."""
    stop_s, command = float(arguments[0]), arguments[1:]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    while child.poll() is None:
        if select.select([sys.stdin], [], [], LOOK_EVERY_S)[0] and not os.read(0, 64):
            _end(child, stop_s)
            break
    status = child.poll()
    _kill_rest()
    return 128 + signal.SIGTERM if status is None else status


def _end(child: "subprocess.Popen[bytes]", stop_s: float) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    ends_at = time.monotonic() + stop_s
    while child.poll() is None and time.monotonic() < ends_at:
        time.sleep(LOOK_EVERY_S)


def _kill_rest() -> None:
    """Whatever is left of the group, this process last."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
