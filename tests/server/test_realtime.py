"""A client process runs in real time where it may, and goes back to normal before it can starve anybody."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_runner.server.client.events import Effort, Event
from gpu_runner.server.client.load import Load
from gpu_runner.server.client.prompts import Manner
from gpu_runner.server.client.realtime import in_real_time
from gpu_runner.server.client.shardplan import ShardPlan
from gpu_runner.server.http.pool import Origin
from gpu_runner.server.mock.behaviour import Behaviour, Scripted
from gpu_runner.server.mock.process import mock_server
from scheduler_core.spec.server import LoadClient
from tests.server.playing import evenly, play

ASK = """
import os, resource, signal, threading, time
from gpu_runner.server.client.realtime import ask_for_real_time, in_real_time
from gpu_runner.server.http.loop import run

def burn(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass

def threads():
    return sorted({os.sched_getscheduler(int(thread)) for thread in os.listdir("/proc/self/task")})
"""


def process(code: str) -> str:
    """What Python says that runs ``code`` in a process of its own."""
    done = subprocess.run([sys.executable, "-c", ASK + code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def allowed() -> None:
    if process("print(ask_for_real_time())") != "True":
        pytest.skip("this system allows no real-time scheduling: root, CAP_SYS_NICE or an RLIMIT_RTPRIO of 1 does")


@pytest.mark.usefixtures("allowed")
class TestAllowed:
    def test_for_a_while_and_then_as_before(self) -> None:
        said = process(
            "from gpu_runner.server.client.realtime import real_time\n"
            "with real_time():\n"
            "    during = threads()\n"
            "print(during, threads())"
        )
        assert said == f"[{os.SCHED_RR}] [{os.SCHED_OTHER}]"

    def test_another_than_the_main_thread_is_told_no(self) -> None:
        said = process(
            "said = []\n"
            "asking = threading.Thread(target=lambda: said.append(ask_for_real_time()))\n"
            "asking.start(); asking.join()\n"
            "print(said, threads())"
        )
        assert said == f"[False] [{os.SCHED_OTHER}]"

    def test_threads_made_before_and_after_run_in_real_time_at_the_lowest_priority(self) -> None:
        said = process(
            "before = threading.Thread(target=time.sleep, args=(1,), daemon=True); before.start()\n"
            "ask_for_real_time()\n"
            "after = threading.Thread(target=time.sleep, args=(1,), daemon=True); after.start()\n"
            "print(threads(), os.sched_getparam(0).sched_priority, len(os.listdir('/proc/self/task')))"
        )
        assert said == f"[{os.SCHED_RR}] 1 3"

    def test_whoever_is_in_real_time_already_keeps_its_priority(self) -> None:
        first = "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(2))\n"
        assert process(f"{first}ask_for_real_time(); print(threads(), os.sched_getparam(0).sched_priority)") == (
            f"[{os.SCHED_FIFO}] 2"
        )

    @pytest.mark.parametrize("on_a_loop", [False, True])
    def test_a_process_that_never_waits_goes_back_to_normal_and_lives(self, *, on_a_loop: bool) -> None:
        """A second and a half of computing are thrice what is allowed; all of its threads go back, also one asleep."""
        call = "run(busy())" if on_a_loop else "burn(1.5)"
        said = process(
            "async def busy():\n    burn(1.5)\n"
            "ask_for_real_time()\n"
            "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
            f"began = in_real_time(); {call}; print(began, threads(), in_real_time())"
        )
        assert said == f"True [{os.SCHED_OTHER}] False"

    def test_one_that_waits_now_and_then_stays(self) -> None:
        """Eight times 0.2 s of computing with a moment's wait after each: never 0.5 s without one."""
        said = process("ask_for_real_time()\nfor _ in range(8):\n    burn(0.2); time.sleep(0.001)\nprint(threads())")
        assert said == f"[{os.SCHED_RR}]"

    def test_a_shorter_limit_that_would_kill_is_not_run_into(self) -> None:
        limit = "resource.setrlimit(resource.RLIMIT_RTTIME, (100_000, 100_000))\n"
        assert process(f"{limit}print(ask_for_real_time(), threads())") == f"False [{os.SCHED_OTHER}]"

    def test_a_run_says_that_its_client_ran_in_real_time(self, tmp_path: Path) -> None:
        behaviour = Behaviour(scripted=Scripted(ttft_ms=5, gap_ms=5))
        played = play(behaviour, evenly(8, gap_ms=5), tmp_path, client={"processes": 2})
        assert played.value("client_real_time_share") == 1

    def test_a_client_that_went_back_to_normal_says_so(self) -> None:
        """While they play, one of two processes is told that it was busy for too long, as by the kernel."""
        requests, events = tuple(evenly(50, gap_ms=20)), list[Event]()
        with mock_server(Behaviour(scripted=Scripted(ttft_ms=5, gap_ms=5))) as url:
            load = Load(ShardPlan("realtime", requests, Manner("mock"), LoadClient(), Origin(url), warm=4), 2)
            try:
                load.open()
                load.start()
                for event in load.events(lambda: False, lambda: None):
                    if not events:
                        os.kill(load.pids[0], signal.SIGXCPU)
                    events.append(event)
            finally:
                load.close()
        assert sorted(event.real_time for event in events if isinstance(event, Effort)) == [False, True]


@pytest.mark.parametrize("priority", [0, 1])
def test_an_unprivileged_process_needs_a_limit_of_its_real_time_priority(priority: int) -> None:
    limit = f"resource.setrlimit(resource.RLIMIT_RTPRIO, ({priority}, {priority}))\n"
    if process(f"try:\n    {limit}except ValueError:\n    print('refused')"):
        pytest.skip("this system lets nobody here raise RLIMIT_RTPRIO, not even root without CAP_SYS_RESOURCE")
    said = process(f"{limit}os.geteuid() or os.setresuid(65534, 65534, 65534)\nprint(ask_for_real_time(), threads())")
    assert said == (f"True [{os.SCHED_RR}]" if priority else f"False [{os.SCHED_OTHER}]")


def test_a_system_without_real_time_scheduling_goes_on_as_before() -> None:
    """As on macOS, where neither the calls nor the limit are there."""
    without = "del os.sched_getscheduler, os.sched_setscheduler, resource.RLIMIT_RTTIME\n"
    assert process(f"{without}print(ask_for_real_time(), in_real_time())") == "False False"


def test_only_the_client_s_own_processes_run_in_real_time() -> None:
    assert not in_real_time()
