"""Running requests that all gain one token a step, kept as one thing.

A request that has caught up changes in every step in the same way: one more token known, granted and confirmed, and a
new block every ``block_size`` steps. Members are therefore not touched step by step: a tick count says how far all of
them are, and a member's numbers are written down when it leaves. A step costs O(members at a block boundary), which
is O(1) where blocks have no identity.
"""

from collections.abc import Iterator

from scheduler_core.request.live import APART, LiveRequest


class Cohort:
    """Members by the tick at which they need their next block; sums over all of them.

    At rest a member has ``granted = confirmed = known - 1`` and ``ceil(granted / block_size)`` blocks.
    ``context_tokens`` is the sum of known tokens, which the members' next step reads. ``newest`` is at least the
    largest admission number of a member. ``pledged``: the blocks that members ask for were promised to them when they
    were admitted; that is a policy's rule, so it holds for all that will grow or for none. ``sizes[t % block size]``
    members need a block in the step of tick ``t``.
    """

    __slots__ = ("_block_size", "_buckets", "context_tokens", "count", "newest", "pledged", "sizes", "tick")

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        # Bucket r holds the members that need a block in steps whose tick is r modulo the block size.
        self._buckets: list[dict[int, LiveRequest]] = [{} for _ in range(block_size)]
        self.sizes = [0] * block_size
        self.tick = 0
        self.count = 0
        self.context_tokens = 0
        self.newest = -1
        self.pledged = False

    def __iter__(self) -> Iterator[LiveRequest]:
        for bucket in self._buckets:
            yield from bucket.values()

    def join(self, request: LiveRequest) -> None:
        """Take in a request at rest that has caught up."""
        tick, known = self.tick, request.known
        request.joined = tick
        lane = request.lane = (tick + 1 - known) % self._block_size
        self._buckets[lane][request.id] = request
        self.sizes[lane] += 1
        self.count += 1
        self.context_tokens += known
        if request.run_seq > self.newest:
            self.newest = request.run_seq
        if request.pledge:
            self.pledged = True

    def leave(self, request: LiveRequest, *, granted: bool = False) -> None:
        """Write down the member's numbers; ``granted``: the step being planned has already given it room."""
        lane = request.lane
        del self._buckets[lane][request.id]
        self.sizes[lane] -= 1
        known = request.known + self.tick - request.joined
        request.known = known
        request.granted = request.confirmed = known - 1
        blocks = -(-(known if granted else known - 1) // self._block_size)
        if request.pledge:
            request.pledge -= min(request.pledge, blocks - request.blocks)
        request.blocks = blocks
        request.joined = APART
        self.count -= 1
        self.context_tokens -= known
        if not self.count:
            self.newest = -1

    def growth(self) -> int:
        """Blocks that the members' next step needs. O(1)."""
        return self.sizes[self.tick % self._block_size]

    def growing(self) -> list[LiveRequest]:
        """Members that need a block for their next step, in order of admission."""
        return sorted(self._buckets[self.tick % self._block_size].values(), key=lambda request: request.run_seq)

    def filling(self) -> list[LiveRequest]:
        """Members whose newest block is full after their next step, in order of admission."""
        return sorted(self._buckets[(self.tick + 1) % self._block_size].values(), key=lambda request: request.run_seq)

    def known(self, request: LiveRequest) -> int:
        """Known tokens of a member now."""
        return request.known + self.tick - request.joined

    def grown(self, request: LiveRequest) -> int:
        """Blocks that ``request`` got as a member and that are not written down in it yet."""
        if request.joined == APART:
            return 0
        return max(0, -(-(self.known(request) - 1) // self._block_size) - request.blocks)

    def advance(self) -> None:
        """All members' step came back: each has emitted one token. O(1)."""
        self.tick += 1
        self.context_tokens += self.count
