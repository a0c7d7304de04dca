"""Every write to a run. The database owns run state; each function here is one conditional step of the lifecycle.

- `queueing`: what people do: queue, cancel, retry, force-close.
- `leases`: what a worker does under its lease: claim, renew, report, finish, release. All fenced by attempt.
- `reaping`: what happens when a worker no longer renews.
- `outbox`: ringing the broker's doorbell, again if it was not heard.
"""

from controlplane.runs.services.leases import (
    LeaseState,
    claim,
    finish,
    record_progress,
    record_state,
    release,
    renew_lease,
)
from controlplane.runs.services.outbox import dispatch_outbox
from controlplane.runs.services.queueing import force_close, next_place, queue_run, request_cancel, retry_run
from controlplane.runs.services.reaping import reap

__all__ = [
    "LeaseState",
    "claim",
    "dispatch_outbox",
    "finish",
    "force_close",
    "next_place",
    "queue_run",
    "reap",
    "record_progress",
    "record_state",
    "release",
    "renew_lease",
    "request_cancel",
    "retry_run",
]
