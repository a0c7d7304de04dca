"""What one process of the load client plays."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_runner.server.client.prompts import Manner
from gpu_runner.server.http.pool import Origin
from scheduler_core.spec.server import LoadClient
from scheduler_core.types.arrival import PlannedRequest


@dataclass(frozen=True)
class ShardPlan:
    """What one shard plays. ``warm`` connections are opened before the first send, ``limits_ms`` are those of tiers."""

    run: str
    requests: tuple[PlannedRequest, ...]
    manner: Manner
    client: LoadClient
    origin: Origin
    headers: Mapping[str, str] = field(default_factory=dict)
    warm: int = 0
    feed_back: bool = True
    limits_ms: Mapping[str, float] = field(default_factory=dict)


def next_turn(request: PlannedRequest, later: PlannedRequest) -> bool:
    """Whether ``later`` continues the conversation of ``request``."""
    return later.session is not None and later.session == request.session and later.turn == request.turn + 1
