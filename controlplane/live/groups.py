"""Names of the channel layer's groups, and the ticks sent to them.

A tick says only "there is news up to here". It carries no data, so losing one costs nothing: the next says more, and
every viewer reads what it missed from the database. All ticks share one type, because a consumer closes its socket on
a type it does not know, as would happen while servers of two versions run side by side.
"""

import hashlib
import logging
from typing import Any

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer

log = logging.getLogger(__name__)

TICK = "live.tick"


def run_group(run_id: str) -> str:
    """Group of those who watch one run."""
    return f"run.{run_id}"


def experiment_group(experiment_id: str) -> str:
    """Group of those who watch one experiment."""
    return f"experiment.{experiment_id}"


def user_group(user_id: int) -> str:
    """Group of one person's sockets, told when that person signs out or loses permission."""
    return f"user.{user_id}"


def announce_run(run_id: str, *, attempt: int, seq: int | None = None) -> None:
    """Say that a run's state or progress changed, or with ``seq`` that its samples up to there are stored."""
    _send(run_group(run_id), {"type": TICK, "topic": "run", "id": run_id, "attempt": attempt, "seq": seq})


def announce_experiment(experiment_id: str) -> None:
    """Say that an experiment's status, runs or verdict changed."""
    _send(experiment_group(experiment_id), {"type": TICK, "topic": "experiment", "id": experiment_id})


def announce_sign_out(user_id: int, session_key: str) -> None:
    """Close the sockets of a session that is ending; a person's other sessions stay."""
    event = {"type": TICK, "topic": "signed_out", "id": str(user_id), "session": session_mark(session_key)}
    _send(user_group(user_id), event)


def session_mark(session_key: str) -> str:
    """What names a session on the channel layer without giving it away."""
    return hashlib.blake2b(session_key.encode(), digest_size=16).hexdigest()


def _send(group: str, event: dict[str, Any]) -> None:
    """Send and never raise: viewers also poll, and no run may fail because its viewers could not be told."""
    layer = get_channel_layer()
    if layer is None:
        return
    try:
        async_to_sync(layer.group_send)(group, event)
    except Exception as error:
        log.warning("live tick to %s was not sent: %s", group, error)
