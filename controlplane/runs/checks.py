"""Start-up checks of the lease's times."""

from typing import Any

from django.conf import settings
from django.core.checks import Error, register


@register()
def check_lease(**_: Any) -> list[Error]:
    """A lease must outlive three heartbeats, so that one missed renewal never costs a run."""
    if settings.RUN_LEASE > settings.RUN_HEARTBEAT * 3:
        return []
    message = (
        f"HEADWAY_LEASE_S ({settings.RUN_LEASE.total_seconds():g}) must be more than three times "
        f"HEADWAY_HEARTBEAT_S ({settings.RUN_HEARTBEAT.total_seconds():g})"
    )
    return [Error(message, hint="raise the lease or shorten the heartbeat", id="runs.E001")]
