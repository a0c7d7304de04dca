"""A pool that counts by stretches says what the pool of blocks says, whatever is asked of both."""

import random
from typing import Any

import pytest

from scheduler_core.kv.rules import CacheRules
from scheduler_core.request.live import LiveRequest
from scheduler_core.request.spec import RequestSpec
from scheduler_core.sched.extent_memory import ExtentMemory
from scheduler_core.sched.memory import BlockMemory, Memory
from scheduler_core.types.plan import Grant, Phase

SIZE = 2


class TwoPools:
    """The same requests in both pools, of few blocks: shared beginnings, equal seeds, preemptions and fences."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        blocks = self.draw.randint(8, 24)
        self.pools: tuple[Memory, Memory] = (
            BlockMemory(blocks=blocks, block_size=SIZE, rules=CacheRules()),
            ExtentMemory(blocks=blocks, block_size=SIZE),
        )
        self.waiting: list[Any] = []
        self.running: list[Any] = []
        self.fences: list[int] = []
        self.made = self.hits = 0

    def turn(self) -> None:
        act = self.draw.choice([self.submit, self.admit, self.admit, self.grant, self.preempt, self.finish, self.lift])
        act()
        counts = [(pool.free, pool.cached, pool.clean, pool.used, pool.total) for pool in self.pools]
        assert counts[0] == counts[1]
        for place, pool in enumerate(self.pools):
            live = [pair[place] for pair in self.running]
            pool.check([request.table for request in live], [request.blocks for request in live])

    def submit(self) -> None:
        if len(self.waiting) > 4:
            return
        prompt, first = self.draw.randint(3, 17), self.draw.randint(0, 1)
        prefix = tuple(range(first, first + self.draw.choice([0, 0, 0, 1, 3])))[: -(-prompt // SIZE)]
        seed = self.draw.randint(0, 1)
        spec = RequestSpec(self.made, 0, prompt, 9, seed=seed, prefix_blocks=prefix, prefix_block_size=SIZE)
        self.made += 1
        self.waiting.append(tuple(LiveRequest(spec, seq=spec.id, model_length=100) for _ in self.pools))

    def admit(self) -> None:
        if not self.waiting:
            return
        pair = self.draw.choice(self.waiting)
        hits = [pool.match(request) for pool, request in zip(self.pools, pair, strict=True)]
        assert len(hits[0]) == len(hits[1])
        idle = [pool.idle(found) for pool, found in zip(self.pools, hits, strict=True)]
        assert idle[0] == idle[1]
        tokens, held = self.draw.randint(1, 15), len(hits[0])
        if not self._fits(pair[0], held * SIZE, tokens, room=self.pools[0].free - idle[0], held=held):
            return
        for pool, request, found in zip(self.pools, pair, hits, strict=True):
            if held:
                pool.adopt(request, found)
        self.hits += held
        self.waiting.remove(pair)
        self.running.append(pair)
        self._grant(pair, tokens)

    def grant(self) -> None:
        if not self.running:
            return
        pair, tokens = self.draw.choice(self.running), self.draw.randint(1, 15)
        if pair[0].debt and self._fits(pair[0], pair[0].granted, tokens, room=self.pools[0].free, held=pair[0].blocks):
            self._grant(pair, tokens)

    def preempt(self) -> None:
        if self.running:
            pair = self.running.pop(self.draw.randrange(len(self.running)))
            back = self.draw.randint(0, 3)
            for pool, request in zip(self.pools, pair, strict=True):
                grant = Grant(request.id, 0, max(0, request.granted - back), back, (), False, Phase.PREFILL)
                if not pool.shared(request, grant):  # as if its last grant were taken back
                    pool.retract(request, grant.start)
                request.restart(None)
                pool.release(request)
            self.waiting.append(pair)

    def finish(self) -> None:
        if not self.running:
            return
        pair = self.running.pop(self.draw.randrange(len(self.running)))
        fence = self.draw.choice([None, None, self.made])
        if fence is not None:
            self.fences.append(fence)
        for pool, request in zip(self.pools, pair, strict=True):
            pool.release(request, fence=fence)

    def lift(self) -> None:
        if self.fences:
            fence = self.fences.pop(0)
            for pool in self.pools:
                pool.lift(fence)

    def _fits(self, request: LiveRequest, start: int, tokens: int, *, room: int, held: int) -> bool:
        return -(-min(start + tokens, request.known) // SIZE) - held <= room

    def _grant(self, pair: Any, tokens: int) -> None:
        """Grant, publish and confirm at once; who has caught up knows a token more."""
        for pool, request in zip(self.pools, pair, strict=True):
            length = min(tokens, request.debt)
            need = -(-(request.granted + length) // SIZE) - request.blocks
            pool.grow(request, max(0, need))
            samples = request.grant(length)
            pool.publish(request, request.granted)
            request.confirm(request.granted, sampled=samples)


@pytest.mark.parametrize("seed", range(60))
def test_both_pools_agree(seed: Any) -> None:
    pools = TwoPools(seed)
    for _ in range(250):
        pools.turn()
    assert pools.hits > 10, "nothing was ever found: the test says nothing"
