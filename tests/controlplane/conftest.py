"""The standard people, a frozen plan, and runs in any state."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.utils import timezone

from controlplane.accounts.models import User
from controlplane.runs.lifecycle import State
from controlplane.runs.models import Run
from controlplane.runs.services import claim, finish, queue_run, record_state
from controlplane.workloads.models import ArrivalPlan
from controlplane.workloads.services import freeze
from tests.samples import WORKLOAD


@pytest.fixture(autouse=True)
def _folders(settings: Any, tmp_path: Any) -> None:
    settings.MEDIA_ROOT = tmp_path / "storage"
    settings.SCRATCH = tmp_path / "scratch"


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
def outsider() -> AnonymousUser:
    return AnonymousUser()


@pytest.fixture
def plan(owner: User) -> ArrivalPlan:
    return freeze(spec=WORKLOAD, user=owner)


@pytest.fixture
def make_run(owner: User, plan: ArrivalPlan) -> Callable[..., Run]:
    """A run brought to a state by the services themselves."""

    def make(state: State = State.QUEUED, **fields: Any) -> Run:
        fields = {"title": "probe", "job": {"arm": "a"}, "device_kind": "cpu", "plan": plan, **fields}
        run = queue_run(owner=owner, **fields)
        if state is State.QUEUED:
            return run
        if state is State.DISPATCHED:
            Run.objects.filter(pk=run.pk).update(state=state, dispatched_at=timezone.now())
        else:
            assert claim(run_id=run.pk, attempt=1, worker="w1", device=f"host/{run.pk}")
            key: dict[str, Any] = {"run_id": run.pk, "attempt": 1}
            if state is not State.STARTING:
                record_state(**key, state=State.RUNNING)
            if state in (State.FINALISING, State.SUCCEEDED):
                record_state(**key, state=State.FINALISING)
            if state in (State.SUCCEEDED, State.FAILED, State.CANCELLED):
                assert finish(**key, outcome=state, reason="so it was", summary={"arm": "a"})
            if state is State.LOST:
                Run.objects.filter(pk=run.pk).update(state=state, lease_worker="", lease_device="")
        run.refresh_from_db()
        return run

    return make
