"""Leader of a run's process group: starts the run's command, and ends the whole group when either side is gone.

``launcher.py GRACE_S COMMAND...``, in a session of its own, with a socket to the worker as standard input. It costs
one small process per run and buys what a parent-death signal alone does not: the run's own children end too, also
where that signal does not exist. When the command ends, its status (a decimal number, negative for a signal) is sent
on the socket and what is left of the group is killed, the launcher included. End of file on the socket means that the
worker is gone: the group is asked to stop and, ``GRACE_S`` later, killed.

Standard library only, and no import of this project: it runs isolated.
"""

import ctypes
import os
import select
import signal
import socket
import subprocess
import sys

PR_SET_PDEATHSIG = 1


def main(grace_s: float, command: list[str]) -> None:
    """Run ``command``; never returns, since it ends by killing its own group."""
    # A handler, not SIG_IGN: ignored signals would stay ignored in the command.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _stay)
    bell, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, _stay)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)

    worker = socket.socket(fileno=os.dup(0))
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_die_with(os.getpid()))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that the pipe to the worker ends with the command

    while child.poll() is None:
        ready, _, _ = select.select([worker.fileno(), bell], [], [])
        if bell in ready:
            os.read(bell, 4096)
        if worker.fileno() in ready and not worker.recv(1):
            _stop(child, grace_s)
            break
    _report(worker, child.poll())
    os.killpg(0, signal.SIGKILL)


def _stay(number: int, frame: object) -> None:
    """Stay: the group's end is decided below, not by whoever signals it."""


def _stop(child: "subprocess.Popen[bytes]", grace_s: float) -> None:
    os.killpg(0, signal.SIGTERM)
    try:
        child.wait(grace_s)
    except subprocess.TimeoutExpired:
        return


def _report(worker: socket.socket, status: int | None) -> None:
    try:
        worker.sendall(b"%d\n" % (-signal.SIGKILL if status is None else status))
    except OSError:
        return  # the worker is gone


def _die_with(parent: int):  # type: ignore[no-untyped-def]
    """What the command's process does before it becomes the command: tie its life to the launcher's (Linux)."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def tie() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return tie


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
