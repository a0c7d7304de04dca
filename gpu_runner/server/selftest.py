"""What the load client can do on this machine, measured against the mock before a run relies on it."""

from dataclasses import dataclass

from gpu_runner.server.client.events import Effort, Over
from gpu_runner.server.client.load import Load
from gpu_runner.server.client.prompts import Manner
from gpu_runner.server.client.shardplan import ShardPlan
from gpu_runner.server.http.pool import Origin
from gpu_runner.server.mock.behaviour import Behaviour, Scripted
from gpu_runner.server.mock.process import mock_server
from scheduler_core.spec.server import LoadClient
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.time import NS_PER_S

CHUNKS_EACH = 64
GAP_MS = 10.0
LEAST_ENDED = 20


@dataclass(frozen=True)
class ClientLimit:
    """Stream chunks and whole requests that one process handles in a CPU second."""

    chunks_per_cpu_s: float
    requests_per_cpu_s: float

    def processes_for(self, *, requests_per_s: float, chunks_per_s: float, busy_share: float = 0.5) -> int:
        """Processes that keep each below ``busy_share`` of a core at this load."""
        cores = requests_per_s / self.requests_per_cpu_s + chunks_per_s / self.chunks_per_cpu_s
        return max(1, -int(-cores // busy_share))


def measure_limit(seconds: float) -> ClientLimit:
    """Play streams and one-token answers against a mock, each for half of ``seconds``, as densely as is useful."""
    half = max(0.1, seconds / 2)
    with mock_server(Behaviour(scripted=Scripted(ttft_ms=5.0, gap_ms=GAP_MS))) as url:
        streams = max(LEAST_ENDED, int(400 * half))
        chunks = _cpu_s_each(url, count=streams, tokens=CHUNKS_EACH, span_s=half)
        singles = max(LEAST_ENDED, int(2000 * half))
        one = _cpu_s_each(url, count=singles, tokens=1, span_s=half)
    per_chunk = max(chunks - one, chunks / 2) / (CHUNKS_EACH - 1)
    return ClientLimit(1 / per_chunk, 1 / one)


def _cpu_s_each(url: str, *, count: int, tokens: int, span_s: float) -> float:
    """CPU seconds of a client process for one request of ``tokens`` chunks."""
    gap = round(span_s * NS_PER_S / count)
    requests = tuple(PlannedRequest(i, i * gap, 16, tokens, tokens, seed=i) for i in range(count))
    plan = ShardPlan("self-test", requests, Manner("mock"), LoadClient(), Origin(url), warm=min(count, 64))
    load = Load(plan, 1)
    ended, cpu_s = 0, 0.0
    try:
        load.open()
        load.start()
        for event in load.events(lambda: False, lambda: None):
            match event:
                case Over():
                    ended += 1
                case Effort():
                    cpu_s = event.cpu_s
    finally:
        load.close()
    return cpu_s / max(1, ended)
