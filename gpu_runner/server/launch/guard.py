"""``python guard.py STOP_S COMMAND...``: runs a command in a group of its own, ended when standard input closes.

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
    """Run the command; its exit status."""
    stop_s, command = float(arguments[0]), arguments[1:]
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    while child.poll() is None:
        if select.select([sys.stdin], [], [], LOOK_EVERY_S)[0] and not os.read(0, 64):
            _end(child, stop_s)
            break
    with contextlib.suppress(ProcessLookupError):  # whatever the command left behind in its group
        os.killpg(child.pid, signal.SIGKILL)
    return child.wait()


def _end(child: "subprocess.Popen[bytes]", stop_s: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
    ends_at = time.monotonic() + stop_s
    while child.poll() is None and time.monotonic() < ends_at:
        time.sleep(LOOK_EVERY_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
