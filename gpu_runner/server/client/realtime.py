"""Scheduling in real time: a client that is due runs at once, also where a server keeps every core busy.

The kernel's normal scheduler lets a process that wakes wait for those that run, for a second and more on few cores;
those in real time come before all normal ones (sched(7)).
"""

import contextlib
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

PRIORITY = 1  # the lowest of those in real time; every normal process is below it
LONGEST_BUSY_S = 0.5


def ask_for_real_time() -> bool:
    """Schedule all threads of this process in real time, and those that they start; whether the system allows it.

    It does for root, with CAP_SYS_NICE, and with an RLIMIT_RTPRIO of `PRIORITY` or more (sched(7)); on a system other
    than Linux, or where it does not, nothing changes. A thread that then computes for `LONGEST_BUSY_S` without ever
    waiting has more to do than there is time for, and would starve whatever shares its core: the whole process goes
    back to the normal scheduler until it asks again. A process that asks on another than its main thread, where the
    kernel's word would not be heard, is told no.
    """
    try:
        if not _guarded():
            return False
        if not in_real_time():  # whoever started it in real time chose the priority
            _schedule(os.SCHED_RR, PRIORITY)
    except (AttributeError, OSError, ValueError):  # the last: `signal.signal` on another thread
        return False
    return True


@contextlib.contextmanager
def real_time() -> Iterator[None]:
    """In real time where the system allows it, and then as before: for a process that is not a client alone."""
    before = in_real_time()
    asked = ask_for_real_time()
    try:
        yield
    finally:
        if asked and not before:
            _schedule(os.SCHED_OTHER, 0)


def in_real_time() -> bool:
    """Whether the calling thread is scheduled in real time."""
    policy_of = getattr(os, "sched_getscheduler", None)
    return policy_of is not None and policy_of(0) in (os.SCHED_FIFO, os.SCHED_RR)


def _guarded() -> bool:
    """Have the kernel send SIGXCPU after `LONGEST_BUSY_S`; False where its harder limit would kill before."""
    _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
    longest_us = round(LONGEST_BUSY_S * 1e6)
    if hard != resource.RLIM_INFINITY and hard <= longest_us:
        return False
    signal.signal(signal.SIGXCPU, _back_to_normal)
    resource.setrlimit(resource.RLIMIT_RTTIME, (longest_us, hard))
    return True


def _back_to_normal(_signal: int, _frame: FrameType | None) -> None:
    _schedule(os.SCHED_OTHER, 0)


def _schedule(policy: int, priority: int) -> None:
    """The kernel schedules threads, each by itself."""
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.sched_setscheduler(int(thread.name), policy, os.sched_param(priority))
