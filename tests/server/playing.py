"""Plays a small plan against a mock in this process's own way: the run's composition, its records and its truth."""

import json
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_runner.run.compose import execute
from gpu_runner.server.mock.behaviour import Behaviour
from gpu_runner.server.mock.process import mock_server
from scheduler_core.evidence.records.segments import read_records
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.spec.job import Message, ResultMessage, RunJob, SampleMessage
from scheduler_core.spec.parse import parse
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.records import Record
from scheduler_core.workload.plan import ArrivalPlan


@dataclass
class Played:
    """What a run left behind, and what the mock says it sent."""

    result: ResultMessage
    messages: list[Message]
    records: list[Record]
    truth: dict[int, dict[str, Any]]

    @property
    def summary(self) -> RunSummary:
        assert self.result.summary is not None, self.result.reason
        return parse(RunSummary, self.result.summary)

    def value(self, metric: str) -> float:
        found = self.summary.metrics[metric].value
        assert found is not None, self.summary.metrics[metric]
        return found

    @property
    def samples(self) -> list[dict[str, Any]]:
        return [message.values for message in self.messages if isinstance(message, SampleMessage)]


def evenly(count: int, *, gap_ms: float, prompt: int = 16, output: int = 8, **more: Any) -> list[PlannedRequest]:
    """Requests at equal distances."""
    return [PlannedRequest(n, round(n * gap_ms * 1e6), prompt, output, output, seed=n, **more) for n in range(count)]


def play_at(url: str, requests: Sequence[PlannedRequest], folder: Path, **server: Any) -> Played:
    """Play ``requests`` against whatever answers at ``url``."""
    plan = ArrivalPlan(tuple(requests), 16)
    plan.write(folder / "plan.jsonl.gz")
    # A busy test machine is no subject of these tests: lateness voids a run only where a test says so.
    client = {"self_test_s": 0, "late_ms": 5000, **server.pop("client", {})}
    job = RunJob.model_validate(
        {
            "run": server.pop("salt_of", "r"),
            "plan_file": str(folder / "plan.jsonl.gz"),
            "policy": server.pop("policy", {"policy": "as_served"}),
            "target": {"server": {"url": url, "warmup_requests": 0, "client": client, **server}},
            "tiers": {"default": {}},
            "workdir": str(folder / "work"),
            "wall_limit_s": 60,
        }
    )
    messages: list[Message] = []
    result = execute(job, messages.append, lambda: False)
    segments = sorted((folder / "work").glob("segment-*.jsonl"))
    return Played(result, messages, list(read_records(segments)), {})


def play(behaviour: Behaviour, requests: Sequence[PlannedRequest], folder: Path, **server: Any) -> Played:
    """Play ``requests`` against a mock that does ``behaviour``."""
    with mock_server(behaviour) as url:
        played = play_at(url, requests, folder, **server)
        with urllib.request.urlopen(f"{url}/mock/truth", timeout=10) as answer:
            played.truth = {item["number"]: item for item in json.load(answer)}
    return played
