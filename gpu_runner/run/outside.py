"""A run against a server: the load client's events and the observer's looks, turned into evidence records."""

import hashlib
import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_runner.run.playing import Sampler
from gpu_runner.server.client.events import Chunks, Due, Effort, Event, Failed, Over, Wrote
from gpu_runner.server.client.load import Load, usable_cores
from gpu_runner.server.client.shardplan import ShardPlan
from gpu_runner.server.observe.observer import Observer
from gpu_runner.server.opened import open_deployment
from gpu_runner.server.profiling import profile
from gpu_runner.server.selftest import measure_limit
from gpu_runner.server.void import Lateness, judge
from scheduler_core.drive.ports import Sink
from scheduler_core.evidence.client.finalise import finalise_client
from scheduler_core.evidence.client.live import ClientSampler
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.policies.resolving import resolve
from scheduler_core.spec.job import RunJob, Sample
from scheduler_core.spec.server import Access, ServerTarget
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.client_records import Answered, ClientEffort, Sent, Streamed
from scheduler_core.types.errors import ExecutorError
from scheduler_core.types.records import Arrived, Finished, Record, RunFinished, RunStarted
from scheduler_core.types.time import NS_PER_S, Ns
from scheduler_core.workload.plan import ArrivalPlan

SERVER_DIED = "the server that was launched for this run ended while it was played"


class OutsideRun:
    """A plan against a deployment: the client's own limit measured, the server at its starting line.

    Raises:
        InputError: the deployment cannot be played; the message says what would be right.
    """

    finalise = staticmethod(finalise_client)

    def __init__(self, job: RunJob, plan: ArrivalPlan, stop: Callable[[], bool]) -> None:
        target = job.target.server
        assert target is not None  # the caller asks for server targets alone
        self._job = job
        self._plan = plan
        self._target: ServerTarget = target
        self._policy = resolve(job.policy)
        self._limit = measure_limit(target.client.self_test_s) if target.client.self_test_s else None
        access = job.access or Access(url=target.deployment(job.arm).url)
        folder = Path(job.workdir)
        self._opened = open_deployment(target, job.arm, access, self._policy, folder=folder, stop=stop)
        self._opened.manner = replace(self._opened.manner, block_size=plan.block_size, salt=_salt(job))
        self._planned = {request.index: request for request in plan.requests}
        self._efforts: list[Effort] = []
        self._lateness = Lateness()
        self._ended = 0
        self._last_ns: Ns = 0
        self._why = ""

    def _started(self) -> RunStarted:
        return RunStarted(
            run=self._job.run,
            attempt=self._job.attempt,
            plan_digest=self._plan.digest,
            policy_digest=self._policy.digest(),
            policy=self._policy.canonical(),
            target=self._job.target.canonical(),
            level="external_server",
            source="client",
            offered=len(self._planned),
            kv_blocks=0,
            block_size=self._plan.block_size,
            token_budget=0,
            observed_hit_share=self._plan.observed_hit_share,
            fingerprint=_fingerprint(),
        )

    def sampler(self, interval_ns: Ns, on_sample: Callable[[Sample], None]) -> Sampler:
        return ClientSampler(interval_ns=interval_ns, on_sample=on_sample)

    def beside_model(self, summary: RunSummary, _records: Callable[[], Iterable[Record]]) -> RunSummary:
        return summary

    def close(self) -> None:
        self._opened.close()

    def play(
        self, sink: Sink, stop: Callable[[], bool], on_progress: Callable[[int, int], None], serving: Callable[[], None]
    ) -> None:
        opened = self._opened
        sink.write(self._started())
        if opened.launched is not None:
            sink.write(opened.loaded)
        sink.write(opened.deployed)
        load = Load(self._shard_plan(), self._processes())
        observer = Observer(opened.sources, every_ms=self._target.scrape_ms)

        def idle() -> None:
            for seen in observer.taken():
                sink.write(seen)
            on_progress(self._ended, len(self._planned))

        try:
            load.open()
            serving()
            observer.start(load.start())
            for event in load.events(lambda: self._stopped(stop), idle):
                for record in self._records(event):
                    sink.write(record)
            for seen in observer.stop():
                sink.write(seen)
        finally:
            observer.stop()
            load.close()
        seconds = self._target.profile_s
        if seconds is not None and not self._stopped(stop):
            sink.write(profile(self._shard_plan(), seconds, self._last_ns, stop))
        self._finish(sink)

    def _shard_plan(self) -> ShardPlan:
        opened, client = self._opened, self._target.client
        requests = self._plan.requests
        return ShardPlan(
            run=f"{self._job.run}-{self._job.attempt}",
            requests=requests,
            manner=opened.manner,
            client=client,
            origin=opened.origin,
            headers=opened.headers,
            warm=min(client.connections, 64, len(requests)),
            feed_back=self._target.feed_back,
            limits_ms={name: tier.timeout_ms for name, tier in self._job.tiers.items() if tier.timeout_ms is not None},
        )

    def _processes(self) -> int:
        client, limit = self._target.client, self._limit
        if client.processes is not None:
            return client.processes
        if limit is None:
            return 1
        rate, chunks = busiest(self._plan.requests)
        wanted = limit.processes_for(requests_per_s=rate, chunks_per_s=chunks)
        return min(wanted, max(1, usable_cores() - 1), len(self._plan.requests))

    def _stopped(self, stop: Callable[[], bool]) -> bool:
        launched = self._opened.launched
        if launched is not None and launched.ended():
            self._why = SERVER_DIED
        return bool(self._why) or stop()

    def _records(self, event: Event) -> Iterator[Record]:
        match event:
            case Chunks():
                rows = event.rows
                self._last_ns = max(self._last_ns, rows[-1][1])
                yield Streamed(rows[-1][1], rows)
            case Due():
                planned = self._planned[event.request]
                yield Arrived(
                    event.at_ns, event.seen_ns, event.request, planned.prompt_tokens, planned.output_limit,
                    planned.tenant, planned.tier,
                )  # fmt: skip
                self._lateness.due(event.request, event.at_ns)
            case Wrote():
                self._lateness.wrote(event.request, event.at_ns, event.number)
                yield Sent(event.at_ns, event.request, event.number, event.connect_ns)
            case Over():
                yield from self._over(event)
            case Effort():
                self._efforts.append(event)
            case Failed():
                raise ExecutorError(f"the load client failed: {event.reason}")

    def _over(self, event: Over) -> Iterator[Record]:
        self._ended += 1
        self._last_ns = max(self._last_ns, event.at_ns)
        yield Answered(
            event.at_ns, event.request, event.counts, event.prompt_tokens, event.cached_tokens, event.queue_ns,
            event.comments, event.empty, event.done_mark,
        )  # fmt: skip
        yield Finished(event.at_ns, event.request, event.outcome, event.stage, event.reason, event.tokens)

    def _finish(self, sink: Sink) -> None:
        efforts, limit = self._efforts, self._limit
        complete = self._ended == len(self._planned) and not self._why
        void = judge(self._lateness, efforts, late_ms=self._target.client.late_ms) if complete else ""
        sink.write(
            ClientEffort(
                at_ns=self._last_ns,
                processes=len(efforts),
                cpu_s=sum(effort.cpu_s for effort in efforts),
                wall_s=max((effort.wall_s for effort in efforts), default=0.0),
                busiest_share=max((effort.busiest_share for effort in efforts), default=0.0),
                lag_p99_ns=max((effort.lag_p99_ns for effort in efforts), default=0),
                lag_max_ns=max((effort.lag_max_ns for effort in efforts), default=0),
                connections=sum(effort.connections for effort in efforts),
                reconnects=sum(effort.reconnects for effort in efforts),
                retries=sum(effort.retries for effort in efforts),
                held_back=sum(effort.held_back for effort in efforts),
                fed_back=sum(effort.answers_fed_back for effort in efforts),
                not_fed_back=sum(effort.answers_not_fed_back for effort in efforts),
                limit_chunks_per_cpu_s=None if limit is None else limit.chunks_per_cpu_s,
                limit_requests_per_cpu_s=None if limit is None else limit.requests_per_cpu_s,
                void=void,
                real_time_processes=sum(effort.real_time for effort in efforts),
            )
        )
        reason = self._why or ("every request ended" if complete else "stopped")
        sink.write(RunFinished(self._last_ns, complete, reason, 0, 0))
        if self._why:
            tail = self._opened.launched.tail() if self._opened.launched is not None else ""
            raise ExecutorError(f"{self._why}; its last output: {tail[-500:]}")


def busiest(requests: tuple[PlannedRequest, ...]) -> tuple[float, float]:
    """(requests, output tokens) per second in the busiest second of planned arrivals; tokens as if made at once."""
    by_second: dict[int, tuple[int, int]] = {}
    for request in requests:
        if not request.after:
            second = request.arrival_ns // NS_PER_S
            count, tokens = by_second.get(second, (0, 0))
            by_second[second] = (count + 1, tokens + request.output_tokens)
    rate = max((count for count, _ in by_second.values()), default=1)
    return float(rate), float(max((tokens for _, tokens in by_second.values()), default=1))


def _salt(job: RunJob) -> int:
    """Its own for every run, so that no run's prompts were seen before."""
    text = f"{job.run}|{job.attempt}|{job.arm}|{job.repeat}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _fingerprint() -> dict[str, Any]:
    """The machine that the load came from."""
    return {
        "client_host": platform.node(),
        "client_system": f"{platform.system()} {platform.machine()}",
        "client_python": platform.python_version(),
        "client_cores": usable_cores(),
    }
