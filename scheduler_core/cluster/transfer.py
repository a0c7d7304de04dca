"""One request on its way from prefill to decode."""

from scheduler_core.sched.moving import Leaving, Reserved
from scheduler_core.types.cluster_records import Landed
from scheduler_core.types.time import Ns


class Transfer:
    """One request on its way. ``ready_ns`` is when its prompt was computed; ``sent`` positions were given to the link.

    ``under_way`` counts pieces on the link or about to leave; ``reported_ns`` is when a late one is told. ``withheld``:
    its first token is computed, but not emitted yet. ``planned`` is the destination that was chosen on arrival;
    ``streams``: bytes may leave before the prompt is computed. ``promised`` KV tokens count at the destination.
    """

    __slots__ = (
        "attempt",
        "destination",
        "left",
        "planned",
        "promised",
        "ready_ns",
        "reported_ns",
        "request",
        "reserved",
        "sent",
        "source",
        "streams",
        "tier",
        "under_way",
        "withheld",
    )

    def __init__(
        self, request: int, source: int, *, tier: str = "default", planned: int | None = None, streams: bool = True
    ) -> None:
        self.request, self.source, self.destination = request, source, -1
        self.tier, self.planned, self.streams = tier, planned, streams
        self.attempt = self.sent = self.under_way = self.promised = 0
        self.reserved: Reserved | None = None
        self.ready_ns: Ns | None = None
        self.left: Leaving | None = None
        self.reported_ns: Ns | None = None
        self.withheld = False

    def landing(self, member: int, epoch: int, now_ns: Ns) -> Landed:
        """The record that it may decode at ``member``; of a whole prompt the last token is computed again."""
        left = self.left
        assert left is not None
        tokens = min(left.computed, left.known - 1)
        return Landed(now_ns, self.request, member, epoch, tokens, stayed=member == self.source)
