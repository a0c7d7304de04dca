"""Ringing the doorbell: one broker message per attempt, carrying run id and attempt number only.

Sending is at least once and may be repeated at any time: a message whose run was claimed, cancelled or queued under a
newer attempt finds no row to claim.
"""

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import F, QuerySet
from django.utils import timezone

from controlplane.errors import BrokerDownError
from controlplane.runs.lifecycle import State
from controlplane.runs.models import Outbox, Run
from controlplane.runs.services.changes import change_state

log = logging.getLogger(__name__)

ACTOR = "dispatch"
LONGEST_DELAY = timedelta(minutes=5)

Send = Callable[[Run], None]


def dispatch_outbox(now: datetime, *, send: Send) -> list[Run]:
    """Send due messages in order of ``place``; the runs whose message went out.

    At most ``RUN_DISPATCH_AHEAD`` runs of a device kind are out unclaimed, so the broker never holds a backlog and an
    earlier place is not stuck behind it. A message that was not claimed within ``RUN_REDISPATCH_AFTER`` is sent again:
    the broker may have lost it. A message that cannot be sent is pushed ahead with a growing delay and does not keep
    the others from going out; `BrokerDownError`, which is no message's fault, ends the turn and is the caller's to
    handle.
    """
    unheard = Run.objects.filter(state=State.DISPATCHED, dispatched_at__lt=now - settings.RUN_REDISPATCH_AFTER)
    sent = [run for run in unheard.order_by("place") if _send(run, send)]
    due = Run.objects.filter(state=State.QUEUED, outbox__attempt=F("attempt"), outbox__due_at__lte=now)
    for kind in due.order_by().values_list("device_kind", flat=True).distinct():
        out = Run.objects.filter(state=State.DISPATCHED, device_kind=kind).count()
        sent += _fill(due.filter(device_kind=kind).order_by("place"), settings.RUN_DISPATCH_AHEAD - out, send)
    return sent


def _fill(due: QuerySet[Run], room: int, send: Send) -> list[Run]:
    """Send the first ``room`` messages of ``due`` that can be sent."""
    sent: list[Run] = []
    for run in due.iterator() if room > 0 else ():
        if _send(run, send):
            sent.append(run)
        if len(sent) >= room:
            break
    return sent


def _send(run: Run, send: Send) -> bool:
    """Send, then mark. A crash in between costs one repeated message; the other order could lose one."""
    row = Outbox.objects.filter(run=run, attempt=run.attempt)
    try:
        send(run)
    except BrokerDownError:
        raise
    except Exception:
        sends = row.values_list("sends", flat=True).first() or 0
        delay = min(settings.RUN_REAP_EVERY * 2 ** min(sends, 16), LONGEST_DELAY)
        log.exception("the message of %s could not be sent; next try in %s", run.pk, delay)
        row.update(due_at=timezone.now() + delay, sends=F("sends") + 1)
        return False
    now = timezone.now()
    row.update(sent_at=now, sends=F("sends") + 1)
    if run.state == State.QUEUED:
        change_state(run=run, to=State.DISPATCHED, actor=ACTOR, fields={"dispatched_at": now})
    else:
        Run.objects.filter(pk=run.pk, attempt=run.attempt, state=State.DISPATCHED).update(dispatched_at=now)
    return True
