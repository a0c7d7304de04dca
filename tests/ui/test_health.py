"""What is wrong is said at the top of the page, with what to do."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.fleet.models import Worker
from controlplane.runs.models import Outbox, Run
from controlplane.ui import health
from tests.ui.conftest import World


def titles() -> list[str]:
    return [item.title for item in health.troubles()]


def test_a_fresh_installation_has_no_worker(browser: Client) -> None:
    body = browser.get("/").content.decode()
    assert "No worker is online." in body and "None has ever reported." in body


def test_a_live_worker_is_no_trouble(world: World) -> None:
    assert titles() == []


def test_a_silent_worker_is_said_with_its_silence(world: World) -> None:
    Worker.objects.update(heartbeat_at=timezone.now() - timedelta(minutes=5))
    assert titles() == ["No worker is online."]
    assert "The last one was heard 5 min 00 s ago." in health.troubles()[0].text


def test_unsent_messages_are_said_only_when_nothing_goes_out(world: World) -> None:
    Outbox.objects.update(due_at=timezone.now() - timedelta(minutes=1))
    assert titles() == ["Queued runs are not being sent out."]
    Run.objects.filter(pk=Run.objects.filter(state="queued")[0].pk).update(state="dispatched")
    assert titles() == []


@pytest.fixture
def redis_layer(settings: Any) -> None:
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels_redis.core.RedisChannelLayer"}}
    settings.REDIS_URL = "redis://127.0.0.1:1"


def test_a_redis_that_does_not_answer_is_said(world: World, redis_layer: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_look", health._RedisLook())
    assert titles() == ["Redis does not answer."]
    assert health.troubles()[0].tone == "bad"


def test_redis_is_asked_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([True])  # a second question would find nothing
    monkeypatch.setattr(health, "_ping", lambda: next(answers))
    look = health._RedisLook()
    assert look.answers() and look.answers() and look.answers()
