"""The standard people, one of everything they own, and clients that sign in by token or by session."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.core.files.base import ContentFile
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone

from controlplane.accounts.models import User
from controlplane.accounts.services import create_token
from controlplane.endpoints.models import Endpoint
from controlplane.endpoints.services import register
from controlplane.evidence import exports
from controlplane.evidence.models import Artifact, SampleChunk, Segment
from controlplane.evidence.services import store_artifact, store_segment
from controlplane.experiments.models import Experiment
from controlplane.experiments.services import submit_experiment
from controlplane.fleet.models import Profile, Worker
from controlplane.policies.models import Policy
from controlplane.policies.services import create_policy
from controlplane.runs.models import Run
from controlplane.studies.models import Study
from controlplane.workloads.models import Dataset, Workload
from controlplane.workloads.services import create_workload, import_trace
from scheduler_core.evidence.records.segments import SegmentInfo, SegmentWriter
from scheduler_core.types.records import Record
from tests.evidence.played import play, summarise
from tests.samples import EXPERIMENT, POLICY, WORKLOAD

PROFILE: dict[str, Any] = {
    "name": "probe",
    "model": "demo-s",
    "device": "cpu",
    "dtype": "float32",
    "cost": {"base_ns": 1e6, "prefill_token_ns": 1e4, "decode_request_ns": 1e5, "context_token_ns": 10},
    "residual_share": 0.02,
    "drift_share": 0.01,
    "held_out_error_share": 0.05,
    "domain": {},
    "steps_measured": 10,
    "measured_on": {},
}
TRACE = b"arrival_s,prompt_tokens,output_tokens\n0.0,10,5\n0.5,20,6\n1.5,30,7\n"


@dataclass(frozen=True)
class Api:
    """A caller of the API; answers are checked to be JSON (or a download) and named by a request id."""

    client: Client
    headers: dict[str, str]

    def call(self, verb: str, path: str, data: Any = None, **extra: Any) -> Any:
        headers = {**self.headers, **extra.pop("headers", {})}
        body: dict[str, Any] = {} if data is None else {"data": json.dumps(data), "content_type": "application/json"}
        body |= extra
        url = path if path.startswith("/api/") else f"/api/v1{path}"
        response = self.client.generic(verb, url, headers=headers, **body)
        assert response["X-Request-ID"]
        return response

    def get(self, path: str, **extra: Any) -> Any:
        return self.call("GET", path, **extra)

    def post(self, path: str, data: Any = None, **extra: Any) -> Any:
        return self.call("POST", path, {} if data is None else data, **extra)

    def upload(self, path: str, fields: dict[str, Any], **extra: Any) -> Any:
        headers = {**self.headers, **extra.pop("headers", {})}
        return self.client.post(f"/api/v1{path}", fields, headers=headers, **extra)


@pytest.fixture(autouse=True)
def _clean_places(settings: Any, tmp_path: Path) -> None:
    settings.MEDIA_ROOT = tmp_path / "storage"
    settings.SCRATCH = tmp_path / "scratch"
    cache.clear()


@pytest.fixture
def owner(db: None) -> User:
    return User.objects.create_user("olga", password="a long password")


@pytest.fixture
def teammate(db: None) -> User:
    return User.objects.create_user("tom", password="a long password")


@pytest.fixture
def staff(db: None) -> User:
    return User.objects.create_user("stella", password="a long password", is_staff=True)


@pytest.fixture
def by_token() -> Callable[..., Api]:
    """A caller with a fresh API token of a person."""

    def make(user: User, *, read_only: bool = False) -> Api:
        issued = create_token(user=user, name="test", read_only=read_only)
        client = Client(raise_request_exception=False, enforce_csrf_checks=True)
        return Api(client, {"Authorization": f"Bearer {issued.secret}"})

    return make


@pytest.fixture
def stranger() -> Api:
    return Api(Client(raise_request_exception=False, enforce_csrf_checks=True), {})


@pytest.fixture
def api(owner: User, by_token: Callable[..., Api]) -> Api:
    """The owner, by token."""
    return by_token(owner)


@dataclass(frozen=True)
class World:
    """One of everything, all of it the owner's."""

    dataset: Dataset
    workload: Workload
    policy: Policy
    experiment: Experiment
    run: Run
    profile: Profile
    worker: Worker
    study: Study
    endpoint: Endpoint

    def arguments(self, name: str) -> dict[str, Any]:
        """URL arguments of the view called ``name``."""
        things = {
            "dataset": self.dataset.pk,
            "workload": self.workload.pk,
            "policy": self.policy.pk,
            "experiment": self.experiment.pk,
            "run": self.run.pk,
            "profile": self.profile.pk,
            "study": self.study.pk,
            "endpoint": self.endpoint.pk,
        }
        found: dict[str, Any] = {"pk": things.get(name.partition("-")[0], "")}
        found |= {"number": 1, "attempt": 1, "name": "summary.json"}
        if name.startswith("worker"):
            found["name"] = self.worker.name
        if name == "schema":
            found["name"] = "experiment"
        if name.endswith("-export"):
            found["name"] = "report.html"
        return found


@pytest.fixture
def world(owner: User) -> World:
    dataset = import_trace(
        owner=owner,
        file=SimpleUploadedFile("t.csv", TRACE),
        name="three rows",
        format="csv",
        options={"time_unit": "s"},
    )
    workload = create_workload(owner=owner, name="steady", spec=WORKLOAD).workload
    policy = create_policy(owner=owner, name="chunked", spec=POLICY).policy
    experiment = submit_experiment(owner=owner, data=EXPERIMENT)
    run = Run.objects.filter(arm_run__arm__experiment=experiment).order_by("place")[0]
    now = timezone.now()
    worker = Worker.objects.create(
        name="w1@host", host="host", pid=1, device_kind="cpu", device="host/cpu:0", started_at=now, heartbeat_at=now
    )
    profile = Profile.objects.create(owner=owner, name="probe", data=PROFILE)
    facts: dict[str, Any] = {"run": run, "attempt": 1, "bytes": 2, "sha256": "0" * 64}
    Artifact.objects.create(name="summary.json", file=_stored("a/summary.json"), **facts)
    Segment.objects.create(number=1, records=1, file=_stored("a/00001.jsonl"), **facts)
    samples = [{"seq": seq, "t_s": seq / 10} for seq in range(1, 8)]
    SampleChunk.objects.create(run=run, attempt=1, first_seq=1, last_seq=7, samples=samples)
    asked = {"name": "budgets", "workload": WORKLOAD, "space": {"batch.size": {"values": ["4"]}}}
    study = Study.objects.create(owner=owner, kind="search", name="budgets", spec=asked, run=run)
    endpoint = register(owner=owner, name="lab", url="http://127.0.0.1:9", secret="s3cret-of-the-lab")
    return World(dataset, workload, policy, experiment, run, profile, worker, study, endpoint)


def _stored(name: str) -> str:
    from django.core.files.storage import default_storage

    return default_storage.save(name, ContentFile(b"{}"))


@pytest.fixture
def folder(world: World, tmp_path: Path) -> Path:
    """A played run of 30 requests stored as the world's run: three or more segments, tables, summary."""
    assert store_run(world.run, play({"policy": "vllm_v1"}, {"requests": 30}), tmp_path) > 2
    return tmp_path


def store_run(run: Run, records: list[Record], folder: Path) -> int:
    """End ``run`` with these records, their tables and summary as its only evidence; how many segments they filled."""
    Segment.objects.all().delete()
    Artifact.objects.all().delete()
    Run.objects.filter(pk=run.pk).update(state="running", attempt=1)
    closed: list[SegmentInfo] = []
    writer = SegmentWriter(folder, records_per_segment=100, on_closed=closed.append)
    for record in records:
        writer.write(record)
    writer.close()
    for info in closed:
        store_segment(
            run_id=run.pk, attempt=1, number=info.number, path=info.path, records=info.records, sha256=info.sha256
        )
    summary = summarise(records, folder)
    for name in exports.TABLES:
        path = folder / f"{name}.parquet"
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        store_artifact(run_id=run.pk, attempt=1, name=path.name, path=path, sha256=digest)
    Run.objects.filter(pk=run.pk).update(state="succeeded", summary=summary.canonical())
    return len(closed)
