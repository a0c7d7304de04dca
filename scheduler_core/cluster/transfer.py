"""One request on its way from prefill to decode."""

from dataclasses import dataclass

from scheduler_core.sched.moving import Leaving, Reserved
from scheduler_core.types.cluster_records import Landed
from scheduler_core.types.time import Ns


@dataclass(slots=True, eq=False)
class Transfer:
    """One request on its way. ``ready_ns`` is when its prompt was computed; ``sent`` positions were given to the link.

    ``under_way`` counts pieces on the link or about to leave; ``reported_ns`` is when a late one is told. ``withheld``:
    its first token is computed, but not emitted yet. ``planned`` is the destination that was chosen on arrival;
    ``streams``: bytes may leave before the prompt is computed. ``promised`` KV tokens count at the destination.
    """

    request: int
    source: int
    destination: int
    attempt: int = 0
    reserved: Reserved | None = None
    ready_ns: Ns | None = None
    left: Leaving | None = None
    sent: int = 0
    under_way: int = 0
    reported_ns: Ns | None = None
    withheld: bool = False
    tier: str = ""
    planned: int | None = None
    streams: bool = True
    promised: int = 0

    def landing(self, member: int, epoch: int, now_ns: Ns) -> Landed:
        """The record that it may decode at ``member``; of a whole prompt the last token is computed again."""
        left = self.left
        assert left is not None
        tokens = min(left.computed, left.known - 1)
        return Landed(now_ns, self.request, member, epoch, tokens, stayed=member == self.source)
