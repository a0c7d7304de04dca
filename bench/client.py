"""What the load client can do: stream chunks and requests a CPU second, how late it sends, how true its figures are.

All against the mock in a process of its own, with one client process in another, whose CPU alone is counted; requests
are made before the start, as in every run of up to 20,000 of them. ``chunks_per_cpu_s`` and ``requests_per_cpu_s`` are
taken apart, from long streams and from answers of one token; ``aim_core_share`` is what both aims together, 3,000
streamed requests with 42,000 chunks a second, take of a core. ``send_delay_p99_ms`` is taken at half of both, with the
chunks that came meanwhile beside it. Client and mock share the machine's cores with whatever else runs there, which can
only add to a delay: the client runs in real time where that is allowed (``send_delay_scheduling`` says how it ran), and
the least of at most three tries counts. ``metric_error_max`` is the largest relative difference between a
figure of the client and the same one worked out from the mock's own stamps, faults among the requests included.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench import harness
from gpu_runner.run.compose import execute
from gpu_runner.server.client.events import Chunks, Due, Effort, Over, Wrote
from gpu_runner.server.client.load import Load
from gpu_runner.server.client.prompts import Manner
from gpu_runner.server.client.shardplan import ShardPlan
from gpu_runner.server.http.loop import run
from gpu_runner.server.http.pool import Origin, Pool
from gpu_runner.server.http.request import ask
from gpu_runner.server.mock.behaviour import Behaviour, Scripted
from gpu_runner.server.mock.process import mock_server
from gpu_runner.server.void import Lateness
from scheduler_core.evidence.records.segments import read_records
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.spec.job import RunJob
from scheduler_core.spec.parse import parse
from scheduler_core.spec.server import LoadClient
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.client_records import Streamed
from scheduler_core.types.time import NS_PER_MS, NS_PER_S, Ns
from scheduler_core.workload.plan import ArrivalPlan

AIM_REQUESTS_PER_S = 3_000
CHUNKS_EACH = 14  # with the aim above 42,000 a second
GAP_MS = 10.0
WARM = 256
AIM_DELAY_MS = 5.0
TRIES = 3


@dataclass(frozen=True)
class Played:
    """Sums over one client process; requests were sent for ``span_s``, and ``chunks_in_span`` came meanwhile."""

    requests: int
    chunks: int
    cpu_s: float
    span_s: float
    chunks_in_span: int
    delay_p99_ms: float
    scheduling: str


def quick() -> harness.Figures:
    """Some seconds for each figure."""
    return _all(seconds=2.0)


def full() -> harness.Figures:
    """Longer, for figures to quote."""
    return _all(seconds=8.0)


def _all(*, seconds: float) -> harness.Figures:
    until = time.monotonic() + 14 * seconds  # of 50 s for the quick form, with what comes after it
    with mock_server(Behaviour(scripted=Scripted(ttft_ms=20, gap_ms=GAP_MS))) as url:
        streams = _play(url, rate=300, tokens=128, seconds=seconds)
        singles = _play(url, rate=2500, tokens=1, seconds=seconds)
        both = _play(url, rate=AIM_REQUESTS_PER_S, tokens=CHUNKS_EACH, seconds=seconds / 2)
        tries = _half(url, seconds=seconds, until=until)
    half = min(tries, key=lambda played: played.delay_p99_ms)
    return {
        "chunks_per_cpu_s": round(streams.chunks / streams.cpu_s),
        "requests_per_cpu_s": round(singles.requests / singles.cpu_s),
        "aim_core_share": round(both.cpu_s / both.requests * AIM_REQUESTS_PER_S, 3),
        "send_delay_p99_ms": round(half.delay_p99_ms, 2),
        "send_delay_tries_count": len(tries),
        "send_delay_scheduling": half.scheduling,
        "send_delay_requests_per_s": round(half.requests / half.span_s),
        "send_delay_chunks_per_s": round(half.chunks_in_span / half.span_s),
        "metric_error_max": round(_metric_error(), 5),
    }


def _half(url: str, *, seconds: float, until: float) -> list[Played]:
    """Tries at half of both aims, until one is prompt enough; none is begun after ``until``."""
    tries: list[Played] = []
    while not tries or (len(tries) < TRIES and tries[-1].delay_p99_ms > AIM_DELAY_MS and time.monotonic() < until):
        tries.append(_play(url, rate=AIM_REQUESTS_PER_S / 2, tokens=CHUNKS_EACH, seconds=seconds))
    return tries


def _play(url: str, *, rate: float, tokens: int, seconds: float) -> Played:
    """One client process plays streams of ``tokens`` chunks, ``rate`` of them a second."""
    count = int(rate * seconds)
    requests = tuple(PlannedRequest(n, round(n * NS_PER_S / rate), 16, tokens, tokens, seed=n) for n in range(count))
    lateness, efforts, ended, stamps = Lateness(), list[Effort](), 0, list[Ns]()
    load = Load(ShardPlan("bench", requests, Manner("mock"), LoadClient(), Origin(url), warm=WARM), 1)
    try:
        load.open()
        load.start()
        for event in load.events(lambda: False, lambda: None):
            match event:
                case Effort():
                    efforts.append(event)
                case Due():
                    lateness.due(event.request, event.at_ns)
                case Wrote():
                    lateness.wrote(event.request, event.at_ns, event.number)
                case Chunks():
                    stamps += event.flat[1::3]
                case Over():
                    ended += event.outcome == "finished"
    finally:
        load.close()
    if ended != count:
        raise RuntimeError(f"{count - ended} of {count} requests did not finish")
    last = requests[-1].arrival_ns
    in_span = sum(at <= last for at in stamps)
    (effort,) = efforts
    scheduling = "in real time" if effort.real_time else "as any other process"
    return Played(count, len(stamps), effort.cpu_s, last / NS_PER_S, in_span, lateness.p99_ms, scheduling)


def _metric_error() -> float:
    """The largest relative error of any figure that the mock's stamps determine too."""
    faults: dict[int, Any] = {3: "error_in_stream", 9: "reset", 15: "no_finish", 21: "refused", 27: "empty_stream"}
    behaviour = Behaviour(
        scripted=Scripted(ttft_ms=300, gap_ms=80, tokens_per_chunk=4), faults=faults, keep_alive_comments=True,
        empty_first_delta=True,
    )  # fmt: skip
    requests = [PlannedRequest(n, n * 60 * NS_PER_MS, 16, 17, 17, seed=n) for n in range(40)]
    with mock_server(behaviour) as url, tempfile.TemporaryDirectory() as folder:
        summary, stamps = _run(url, requests, Path(folder))
        truth = run(_truth(url))
    done = {item["number"]: item["sent"] for item in truth if item["reason"] == "length"}
    # The run's zero on the mock's clock: a stamp is never earlier than its chunk was sent, the promptest hardly later.
    zero_ns = max(sent[0][0] - stamps[number] for number, sent in done.items())
    due_ms = {request.index: (request.arrival_ns + zero_ns) / NS_PER_MS for request in requests}
    true: dict[str, float] = {
        "ttft_mean_ms": statistics.mean(sent[0][0] / NS_PER_MS - due_ms[n] for n, sent in done.items()),
        "e2e_mean_ms": statistics.mean(sent[-1][0] / NS_PER_MS - due_ms[n] for n, sent in done.items()),
        "tpot_mean_ms": statistics.mean((s[-1][0] - s[0][0]) / NS_PER_MS / 16 for s in done.values()),
        "longest_gap_mean_ms": statistics.mean(max(_gaps(s)) for s in done.values()),
        "chunk_gap_p50_ms": statistics.median(gap for s in done.values() for gap in _gaps(s)),
        "chunk_tokens_mean": statistics.mean(tokens for s in done.values() for _, tokens in s),
        "completion_share": len(done) / len(requests),
    }
    errors = [abs((summary.metrics[name].value or 0) / value - 1) for name, value in true.items()]
    failed = summary.offered - summary.outcomes["finished"]
    return max(*errors, float(failed != len(faults)))


def _gaps(sent: Sequence[Sequence[int]]) -> list[float]:
    return [(after[0] - before[0]) / NS_PER_MS for before, after in pairwise(sent)]


async def _truth(url: str) -> Any:
    pool = Pool(Origin(url))
    try:
        return (await ask(pool, "GET", "/mock/truth")).json()
    finally:
        pool.close()


def _run(url: str, requests: list[PlannedRequest], folder: Path) -> tuple[RunSummary, dict[int, Ns]]:
    """The summary of a run, and when its client saw the first chunk of each request, on the run's clock."""
    ArrivalPlan(tuple(requests), 16).write(folder / "plan.jsonl.gz")
    client = {"self_test_s": 0, "late_ms": 10_000}
    job = RunJob.model_validate(
        {
            "run": "bench", "plan_file": str(folder / "plan.jsonl.gz"), "policy": {"policy": "as_served"},
            "target": {"server": {"url": url, "client": client, "warmup_requests": 0}}, "tiers": {"default": {}},
            "workdir": str(folder / "work"),
        }
    )  # fmt: skip
    result = execute(job, lambda message: None, lambda: False)
    first: dict[int, Ns] = {}
    for record in read_records(sorted((folder / "work").glob("segment-*.jsonl"))):
        if isinstance(record, Streamed):
            for request, at_ns, _ in record.rows:
                first.setdefault(request, at_ns)
    return parse(RunSummary, result.summary), first


if __name__ == "__main__":
    sys.exit(harness.main("client", quick=quick, full=full))
