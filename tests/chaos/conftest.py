"""One stack for the whole module; each test finds broker, dispatch and one worker up."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from django.conf import settings
from django.db import connection

from controlplane.accounts.models import User
from controlplane.runs.models import Run
from controlplane.runs.services import queue_run
from controlplane.workloads.models import ArrivalPlan
from controlplane.workloads.services import freeze
from tests.chaos.stack import SCALED, Stack, wait_for
from tests.samples import WORKLOAD

JOB: dict[str, Any] = {
    "policy": {"policy": "static"},
    "target": {"torch": {"device": "cpu"}},
    "tiers": {"default": {}},
}


def database_url() -> str:
    """The test database, for other processes."""
    found = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{found['NAME']}"
    who = f"{found['USER']}:{quote(found['PASSWORD'])}@{found['HOST']}:{found['PORT']}"
    return f"postgres://{who}/{found['NAME']}"


@pytest.fixture(scope="session")
def _stack(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("stack") / "home", database_url(), SCALED)
    yield stack
    stack.close()


@pytest.fixture
def stack(_stack: Stack, transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Stack:
    monkeypatch.setattr(settings, "MEDIA_ROOT", _stack.home / "storage")
    _stack.ensure()
    return _stack


@pytest.fixture
def owner(transactional_db: None) -> User:
    return User.objects.create_user("olga", password="a long password")


@pytest.fixture
def queue(stack: Stack, owner: User) -> Callable[..., Run]:
    """Queue a run that behaves as its arm's name says."""
    plan: ArrivalPlan = freeze(spec=WORKLOAD, user=owner)

    def make(arm: str, **fields: Any) -> Run:
        return queue_run(owner=owner, title=arm, job={**JOB, "arm": arm}, device_kind="cpu", plan=plan, **fields)

    return make


@pytest.fixture
def until(stack: Stack) -> Callable[..., Run]:
    """Wait until a run is in one of some states, and return it as it is then."""

    def wait(run: Run, *states: str, within_s: float = 10, attempt: int = 1) -> Run:
        def reached() -> bool:
            run.refresh_from_db()
            return run.state in states and run.attempt >= attempt

        try:
            wait_for(reached, within_s=within_s)
        except TimeoutError:
            logs = "\n".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in Path(stack.home).glob("*.log"))
            raise AssertionError(f"{run.state} attempt {run.attempt} ({run.reason}), wanted {states}\n{logs}") from None
        return run

    return wait
