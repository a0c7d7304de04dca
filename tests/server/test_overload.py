"""A load client that cannot keep up says so: its run is void, or its latencies are still those that the server sent.

Truth are the mock's own stamps, on the same clock of this host as the client's.
"""

import json
import os
import signal
import statistics
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from gpu_runner.server.client.events import Chunks, Due, Effort, Over, Wrote
from gpu_runner.server.client.load import Load
from gpu_runner.server.client.prompts import Manner
from gpu_runner.server.client.shardplan import ShardPlan
from gpu_runner.server.http.pool import Origin
from gpu_runner.server.mock.behaviour import Behaviour, Scripted
from gpu_runner.server.mock.process import mock_server
from gpu_runner.server.void import Lateness, judge
from scheduler_core.spec.server import LoadClient
from scheduler_core.types.time import NS_PER_MS
from tests.server.playing import evenly

CLIENT = LoadClient()
STEADY = Behaviour(scripted=Scripted(ttft_ms=50, gap_ms=15))


@dataclass
class Seen:
    """What the client said of a run: why it is void, and the median TTFT of its own stamps and of the mock's."""

    void: str
    finished: int
    ttft_ms: float
    true_ttft_ms: float


def overloaded(count: int, *, rate: float, tokens: int, meanwhile: Callable[[int], None] = lambda pid: None) -> Seen:
    """One client process plays ``count`` streams of ``tokens`` chunks; ``meanwhile`` runs beside it, given its id."""
    requests = tuple(evenly(count, gap_ms=1e3 / rate, output=tokens))
    lateness, efforts, finished, first = Lateness(), list[Effort](), 0, dict[int, int]()
    with mock_server(STEADY) as url:
        load = Load(ShardPlan("overload", requests, Manner("mock"), CLIENT, Origin(url), warm=64), 1)
        try:
            load.open()
            beside = threading.Thread(target=meanwhile, args=load.pids)
            zero_ns = load.start().zero_ns
            beside.start()
            for event in load.events(lambda: False, lambda: None):
                match event:
                    case Due():
                        lateness.due(event.request, event.at_ns)
                    case Wrote():
                        lateness.wrote(event.request, event.at_ns, event.number)
                    case Chunks():
                        for request, at_ns, _ in event.rows:
                            first.setdefault(request, at_ns)
                    case Over():
                        finished += event.outcome == "finished"
                    case Effort():
                        efforts.append(event)
            beside.join()
        finally:
            load.close()
        with urllib.request.urlopen(f"{url}/mock/truth", timeout=30) as answer:
            truth = {item["number"]: item["sent"][0][0] - zero_ns for item in json.load(answer)}
    due = lateness.due_ns
    return Seen(
        judge(lateness, efforts, late_ms=CLIENT.late_ms),
        finished,
        statistics.median((at - due[n]) / NS_PER_MS for n, at in first.items()),
        statistics.median((at - due[n]) / NS_PER_MS for n, at in truth.items()),
    )


@pytest.mark.parametrize("rate", [300, 1_000])
def test_a_client_without_a_core_to_itself_is_void_or_right(rate: int) -> None:
    """Streams of 64 chunks, 300 and 1,000 requests a second, with client, mock and reader on one core together."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # of this thread; what it starts inherits it
    try:
        seen = overloaded(rate, rate=rate, tokens=64)
    finally:
        os.sched_setaffinity(0, cores)
    assert seen.finished == rate
    assert seen.void or seen.ttft_ms == pytest.approx(seen.true_ttft_ms, rel=0.1), seen


def test_a_client_that_was_stopped_is_void() -> None:
    """Stopped for 300 ms of the 400 in which it has to send: no machine can make that run a good one."""

    def stop(client: int) -> None:
        time.sleep(0.4)  # the clock reaches 0 after 0.3 s
        os.kill(client, signal.SIGSTOP)
        time.sleep(0.3)
        os.kill(client, signal.SIGCONT)

    seen = overloaded(40, rate=100, tokens=4, meanwhile=stop)
    assert seen.finished == 40
    assert seen.void.startswith("the load client was late: 99 % of requests were sent within")
