"""People, and one of everything that pages show, with names that try to break out of HTML."""

from dataclasses import dataclass
from typing import Any

import pytest
from django.core.files.base import ContentFile
from django.test import Client
from django.utils import timezone

from controlplane.accounts.models import User
from controlplane.endpoints.models import Endpoint
from controlplane.endpoints.services import register
from controlplane.evidence.models import Artifact, SampleChunk, Segment
from controlplane.experiments.models import Experiment
from controlplane.experiments.services import submit_experiment
from controlplane.fleet.models import Profile, Worker
from controlplane.policies.models import PolicyVersion
from controlplane.policies.services import add_version as add_policy_version
from controlplane.policies.services import create_policy
from controlplane.runs.models import Attempt, Run
from controlplane.studies.models import Study
from controlplane.workloads.models import Dataset, WorkloadVersion
from controlplane.workloads.services import create_workload, import_trace
from tests.samples import EXPERIMENT, WORKLOAD
from tests.ui.samples import HOSTILE, PROFILE, SEARCH, SEARCH_RESULT, SUMMARY, TRACE, VERDICT


@pytest.fixture(autouse=True)
def _storage(settings: Any, tmp_path: Any) -> None:
    settings.MEDIA_ROOT = tmp_path / "storage"
    settings.ALLOWED_HOSTS = ["testserver"]


@pytest.fixture
def owner(db: None) -> User:
    return User.objects.create_user("olga", password="a long password", first_name=HOSTILE)


@pytest.fixture
def teammate(db: None) -> User:
    return User.objects.create_user("tom", password="a long password")


def signed_in(user: User, **options: Any) -> Client:
    """A browser in which ``user`` is signed in."""
    client = Client(**options)
    client.force_login(user)
    return client


@pytest.fixture
def browser(owner: User) -> Client:
    return signed_in(owner)


@dataclass
class World:
    """One of everything, owned by the owner."""

    experiment: Experiment
    run: Run
    workload: WorkloadVersion
    policy: PolicyVersion
    dataset: Dataset
    worker: Worker
    profile: Profile
    artifact: Artifact
    segment: Segment
    study: Study
    endpoint: Endpoint


@pytest.fixture
def world(owner: User) -> World:
    workload = create_workload(owner=owner, name="evening", spec=WORKLOAD)
    policy = create_policy(owner=owner, name="tuned", spec={"policy": "static"})
    policy = add_policy_version(policy=policy.policy, user=owner, spec={"policy": "static", "batch": {"size": 4}})
    dataset = import_trace(
        owner=owner, file=ContentFile(TRACE, "t.csv"), name=HOSTILE, options=TRACE_OPTIONS, format="csv"
    )
    experiment = submit_experiment(owner=owner, data=EXPERIMENT)
    Experiment.objects.filter(pk=experiment.pk).update(
        verdict=VERDICT, status="decided", decided_at=timezone.now(), notes=HOSTILE
    )
    experiment.refresh_from_db()
    run = Run.objects.filter(arm_run__arm__experiment=experiment).order_by("place")[0]
    Run.objects.filter(pk=run.pk).update(
        state="succeeded",
        reason=HOSTILE,
        summary=SUMMARY,
        done=20,
        started_at=timezone.now(),
        finished_at=timezone.now(),
    )
    run.refresh_from_db()
    Attempt.objects.create(run=run, number=1, worker="w@h", outcome="succeeded", log_tail=HOSTILE)
    SampleChunk.objects.create(
        run=run, attempt=1, first_seq=1, last_seq=1, samples=[{"seq": 1, "t_s": 0.2, "waiting": 1}]
    )
    artifact = Artifact.objects.create(
        run=run, attempt=1, name="summary.json", bytes=2, sha256="0" * 64, file=ContentFile(b"{}", "runs/s.json")
    )
    segment = Segment.objects.create(
        run=run, attempt=1, number=1, bytes=2, records=1, sha256="0" * 64, file=ContentFile(b"{}", "runs/s.jsonl")
    )
    worker = Worker.objects.create(
        name="headway-cpu@host", host="host", pid=1, device_kind="cpu", device="host/cpu:0",
        started_at=timezone.now(), heartbeat_at=timezone.now(),
    )  # fmt: skip
    profile = Profile.objects.create(owner=owner, name=HOSTILE, data=PROFILE)
    study = Study.objects.create(
        owner=owner, kind="search", name="budgets", spec=SEARCH, status="failed", reason=HOSTILE, result=SEARCH_RESULT
    )
    endpoint = register(owner=owner, name="lab", url="http://127.0.0.1:9", secret="s3cret-of-the-lab")
    return World(experiment, run, workload, policy, dataset, worker, profile, artifact, segment, study, endpoint)


TRACE_OPTIONS = {"time_unit": "s"}
