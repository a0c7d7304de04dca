"""Pools for simulations whose blocks have no identity: what they have in common, and the one that only counts."""

from collections.abc import Sequence

from scheduler_core.kv.host import HostPool
from scheduler_core.kv.prefix import Hits, SharedHits
from scheduler_core.request.live import LiveRequest
from scheduler_core.sched.cohort import Cohort
from scheduler_core.sched.decisions import Deferral
from scheduler_core.sched.memory import NO_MOVES, Memory, blocks_for, use_pledge
from scheduler_core.types.errors import CallerError, LawError
from scheduler_core.types.plan import Grant, Moves
from scheduler_core.types.reasons import Defer


class NamelessBlocks(Memory):
    """What pools have in common whose blocks have no identity: no tables for kernels, no host pool, no marks."""

    __slots__ = ()

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.by_member = False
        self.pledged = 0
        self.host = HostPool(0)

    @property
    def host_used(self) -> int:
        return 0

    def distrust(self) -> None:
        return None

    def trim(self, request: LiveRequest, count: int) -> None:
        raise CallerError(f"request {request.id} cannot be set aside: there is no host pool that it could go to")

    def share(self, request: LiveRequest, source: LiveRequest) -> SharedHits | None:
        raise CallerError(f"request {request.id}: blocks are shared where they have names")

    def swap_out(self, request: LiveRequest, tokens: int) -> Deferral | None:
        return Deferral(Defer.HOST_FULL, blocks_for(tokens, self.block_size), 0)

    def pin(self, request: LiveRequest, fence: int) -> int:
        raise CallerError(f"request {request.id}: blocks are pinned where they have names, step by step")

    def swap_in(self, request: LiveRequest) -> None:
        raise CallerError(f"request {request.id} was never swapped out: there is no host pool")

    def forget_swapped(self, request: LiveRequest) -> None:
        return None

    def evict_ahead(self) -> int:
        return 0

    def take_moves(self) -> Moves:
        return NO_MOVES

    def free_order(self) -> list[int]:
        return []

    def check_host(self, tables: Sequence[Sequence[int]]) -> None:
        if any(tables):
            raise LawError(f"requests say that they have host blocks {list(tables)}, and there is no host pool")


class CountedMemory(NamelessBlocks):
    """Blocks as numbers: enough where nothing is cached and no kernel writes, and O(1) per step for a cohort."""

    __slots__ = ("_fenced", "cached", "free", "total")

    cached: int
    free: int
    total: int

    def __init__(self, *, blocks: int, block_size: int) -> None:
        super().__init__(block_size)
        self.cached = self._fenced = 0
        self.total = self.free = blocks

    @property
    def used(self) -> int:
        return self.total - self.free

    @property
    def clean(self) -> int:
        return self.free

    def match(self, request: LiveRequest) -> list[int]:
        return []

    def found(self, request: LiveRequest) -> tuple[Sequence[int], int]:
        return (), 0

    def idle(self, hits: Hits) -> int:
        return 0

    def adopt(self, request: LiveRequest, hits: Hits) -> None:
        return None

    def grow(self, request: LiveRequest, count: int) -> tuple[int, ...]:
        self.free -= count
        request.blocks += count
        if request.pledge:
            use_pledge(self, request, count)
        return ()

    def grow_member(self, member: LiveRequest) -> None:
        self.free -= 1

    def grow_cohort(self, cohort: Cohort, count: int, *, publish: bool) -> None:
        self.free -= count
        if cohort.pledged:
            self.pledged -= count

    def publish(self, request: LiveRequest, tokens: int, *, fence: int | None = None) -> None:
        return None

    def publish_cohort(self, cohort: Cohort) -> None:
        return None

    def settle(self, request: LiveRequest) -> None:
        return None

    def release(self, request: LiveRequest, *, fence: int | None = None) -> int:
        held = request.blocks
        if fence is None:
            self.free += held
        else:
            self._fenced += held
        self.pledged -= request.pledge
        request.blocks = request.pledge = 0
        return held

    def lift(self, fence: int) -> None:
        self.free += self._fenced
        self._fenced = 0

    def retract(self, request: LiveRequest, tokens: int) -> None:
        return None

    def shared(self, request: LiveRequest, grant: Grant) -> bool:
        return False

    def forget(self) -> int:
        return 0

    def check(self, tables: Sequence[Sequence[int]], counts: Sequence[int]) -> None:
        held = sum(counts)
        if self.free + held + self._fenced != self.total:
            raise LawError(f"free {self.free} + held {held} + fenced {self._fenced} != total {self.total}")
