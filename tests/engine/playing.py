"""Plays requests on an executor by arbitrary plans: a scheduler with no policy at all, for tests of token identity."""

import random
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from gpu_runner.engine.executor import TorchExecutor
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.plan import BlockCopy, Grant, GrantResult, Phase, Rebind, StepPlan, StepResult

_INDEX = count()
_PLAN = count()


def request(prompt: int, output: int, *, seed: int = 0, prefix: tuple[int, ...] = ()) -> PlannedRequest:
    """A request with an index of its own."""
    return PlannedRequest(next(_INDEX), 0, prompt, output, output, seed=seed, prefix_blocks=prefix)


@dataclass(slots=True)
class Answer:
    """Tokens of a request, and the positions at which the engine reported a tie, with the distance of the two best."""

    tokens: list[int] = field(default_factory=list)
    ties: dict[int, float] = field(default_factory=dict)

    def take(self, result: GrantResult) -> None:
        """Append what a grant yielded."""
        if result.token is not None:
            if result.tie_margin is not None:
                self.ties[len(self.tokens)] = result.tie_margin
            self.tokens.append(result.token)

    def begin(self, count: int) -> "Answer":
        """The first ``count`` tokens."""
        return Answer(self.tokens[:count], {place: margin for place, margin in self.ties.items() if place < count})

    def agrees(self, other: "Answer") -> bool:
        """Equal up to the first tie that either reported: behind a tie the two may go different ways."""
        end = min([*self.ties, *other.ties, len(self.tokens), len(other.tokens)])
        full = end == len(self.tokens) == len(other.tokens)
        return self.tokens[:end] == other.tokens[:end] and (full or bool(self.ties or other.ties))


def step(executor: TorchExecutor, *grants: Grant, released: tuple[int, ...] = (), **moves: Any) -> StepResult:
    """Launch one plan and wait for it; ``moves`` are its copies and rebinds."""
    executor.launch(StepPlan(next(_PLAN), grants, released, **moves))
    result = executor.wait(None)
    assert result is not None
    return result


def alone(executor: TorchExecutor, planned: PlannedRequest, *, chunk: int = 1 << 30) -> Answer:
    """Serve one request by itself, in chunks of at most ``chunk``; it is opened and closed here."""
    answer = Answer()
    size = executor.settings.block_size
    blocks = tuple(range(-(-(planned.prompt_tokens + planned.output_tokens) // size)))
    executor.open(planned)
    at, known = 0, planned.prompt_tokens
    while len(answer.tokens) < planned.output_tokens:
        length = min(chunk, known - at)
        new = blocks if at == 0 else ()
        phase = Phase.PREFILL if known == planned.prompt_tokens else Phase.DECODE
        result = step(executor, Grant(planned.index, 0, at, length, new, at + length == known, phase))
        answer.take(result.grants[0])
        at += length
        known = planned.prompt_tokens + len(answer.tokens)
    executor.close(planned.index)
    return answer


@dataclass(slots=True)
class _Resident:
    planned: PlannedRequest
    answer: Answer = field(default_factory=Answer)
    epoch: int = 0
    written: int = 0
    blocks: list[int] = field(default_factory=list)
    ran: bool = False
    kept: list[int] = field(default_factory=list)
    kept_tokens: int = 0
    cancelled: bool = False

    @property
    def known(self) -> int:
        return self.planned.prompt_tokens + len(self.answer.tokens)


class Chaos:
    """Serves requests with random batches, chunks, preemptions, swaps, exchanges of equal blocks, prefix hits and
    cancels until all have ended.

    Samples of one prompt (requests of a group) may begin with what another one of them has written of it, whole blocks
    shared and the rest copied. Blocks are counted here by hand, so a test can also say that the engine touched none but
    those it was given.
    """

    def __init__(self, executor: TorchExecutor, choices: random.Random, *, cancel_share: float = 0.0) -> None:
        self._executor = executor
        self._cancel_share = cancel_share
        self._choices = choices
        self._size = executor.settings.block_size
        self._owners = [0] * executor.settings.kv_blocks
        self._host_free = list(range(executor.settings.host_blocks))
        self._released: list[int] = []
        self._out: list[BlockCopy] = []
        self._in: list[BlockCopy] = []
        self._on_write: dict[int, int] = {}  # target -> source
        self._read: list[int] = []
        self.copies_on_write = 0
        self.preemptions = 0
        self.hits = 0
        self.cancels = 0
        self.swaps = 0
        self.rebinds = 0

    def serve(self, requests: list[PlannedRequest]) -> list[Answer]:
        """The answers, in the order of ``requests``."""
        all_ = [_Resident(planned) for planned in requests]
        for resident in all_:
            self._executor.open(resident.planned)
        while left := [r for r in all_ if len(r.answer.tokens) < r.planned.output_tokens and not r.cancelled]:
            self._turn(left)
            self._check(all_)
        for resident in all_:
            self._executor.close(resident.planned.index)
        return [resident.answer for resident in all_]

    def _turn(self, left: list[_Resident]) -> None:
        grants: list[tuple[_Resident, Grant]] = []
        for resident in self._choices.sample(left, self._choices.randint(1, len(left))):
            if resident.blocks and self._choices.random() < 0.15:
                self._preempt(resident)
            grant = self._grant(resident, left)
            if grant is None and (victims := [r for r in left if r.blocks and not self._holds(r, grants)]):
                self._preempt(self._choices.choice(victims))
                grant = self._grant(resident, left)
            if grant is not None:
                grants.append((resident, grant))
        rebinds = self._exchange(left, grants)
        released, self._released = tuple(self._released), []
        on_write = tuple(BlockCopy(source, target) for target, source in self._on_write.items())
        moves = {
            "copies_out": tuple(self._out),
            "copies_in": tuple(self._in),
            "rebinds": rebinds,
            "copies_on_write": on_write,
        }
        for source in self._on_write.values():
            self._owners[source] -= 1
        self.copies_on_write += len(on_write)
        self._out, self._in, self._on_write = [], [], {}
        result = step(self._executor, *(grant for _, grant in grants), released=released, **moves)
        self._settle()
        for (resident, grant), yielded in zip(grants, result.grants, strict=True):
            resident.written = grant.start + grant.length
            resident.answer.take(yielded)
            assert yielded.last == (len(resident.answer.tokens) == resident.planned.output_tokens)
            if yielded.last:
                self._give_up(resident)
            elif self._choices.random() < self._cancel_share:
                self._cancel(resident)

    def _cancel(self, resident: _Resident) -> None:
        self._give_up(resident)
        self._host_free += resident.kept
        resident.kept, resident.cancelled = [], True
        self.cancels += 1
        self._executor.close(resident.planned.index)

    def _check(self, residents: list[_Resident]) -> None:
        """The engine's block tables are those of this account."""
        mine = {r.planned.index: tuple(r.blocks) for r in residents if r.blocks}
        theirs = self._executor.tables()
        assert {index: table for index, table in theirs.items() if index in mine} == mine

    def _exchange(self, left: list[_Resident], grants: list[tuple[_Resident, Grant]]) -> tuple[Rebind, ...]:
        """Sometimes: a resident's first blocks are exchanged for equal ones of another, which both keep."""
        for mine in left:
            resident_before = mine.blocks and not any(granted is mine and not grant.start for granted, grant in grants)
            if not resident_before or self._choices.random() < 0.5:
                continue
            equal = self._shared(mine, [other for other in left if other.written and not other.kept])
            whole = min(len(equal), mine.written // self._size)
            equal = equal[:whole]
            if not whole or equal == mine.blocks[:whole] or set(equal) & self._new(grants):
                continue
            if any(granted is mine and grant.hit_tokens for granted, grant in grants):
                continue
            for old, new in zip(mine.blocks[:whole], equal, strict=True):
                self._owners[old] -= 1
                self._owners[new] += 1
            mine.blocks[:whole] = equal
            self.rebinds += 1
            return (Rebind(mine.planned.index, mine.epoch, 0, tuple(equal)),)
        return ()

    def _new(self, grants: list[tuple[_Resident, Grant]]) -> set[int]:
        return {block for _, grant in grants for block in grant.new_blocks}

    def _holds(self, resident: _Resident, grants: list[tuple[_Resident, Grant]]) -> bool:
        return any(granted is resident for granted, _ in grants)

    def _settle(self) -> None:
        """Host blocks that were read may be written again."""
        self._host_free += self._read
        self._read = []

    def _grant(self, resident: _Resident, left: list[_Resident]) -> Grant | None:
        if resident.kept:
            return self._swap_in(resident)
        if not resident.blocks and (part := self._part(resident, left)) is not None:
            return part
        hit = self._shared(resident, left) if not resident.blocks else []
        start = len(hit) * self._size if hit else resident.written
        length = self._choices.randint(1, resident.known - start)
        if self._choices.random() < 0.4:
            length = resident.known - start
        needed = -(-(start + length) // self._size) - len(resident.blocks) - len(hit)
        free = [block for block, owners in enumerate(self._owners) if not owners]
        if needed > len(free):
            return None
        new = hit + self._choices.sample(free, max(0, needed))
        for block in new:
            self._owners[block] += 1
        first = not resident.blocks
        resident.blocks += new
        self.hits += bool(hit)
        phase = Phase.RECOMPUTE if resident.ran else Phase.DECODE if resident.answer.tokens else Phase.PREFILL
        samples = start + length == resident.known
        hit_tokens = start if first else 0
        return Grant(resident.planned.index, resident.epoch, start, length, tuple(new), samples, phase, hit_tokens)

    def _part(self, resident: _Resident, left: list[_Resident]) -> Grant | None:
        """A first grant behind what another sample has written of the prompt, any number of its tokens."""
        group = resident.planned.group
        others = [
            r for r in left if r is not resident and r.planned.group == group is not None and r.written and r.blocks
        ]
        if not others or self._choices.random() < 0.2:
            return None
        source = self._choices.choice(others)
        most = min(source.written, resident.planned.prompt_tokens, resident.known - 1)
        start = self._choices.randint(0, most) if self._choices.random() < 0.5 else most
        if source.ran and self._in:
            return None  # its blocks may come in with this very plan
        length = self._choices.randint(1, resident.known - start)
        whole, rest = divmod(start, self._size)
        free = [block for block, owners in enumerate(self._owners) if not owners]
        needed = -(-(start + length) // self._size) - whole
        if not start or needed > len(free):
            return None
        own = self._choices.sample(free, needed)
        if rest:
            self._on_write[own[0]] = source.blocks[whole]
            self._owners[source.blocks[whole]] += 1  # until the plan is made
        resident.blocks = source.blocks[:whole] + own
        for block in resident.blocks:
            self._owners[block] += 1
        phase = Phase.RECOMPUTE if resident.ran else Phase.PREFILL
        samples = start + length == resident.known
        blocks = tuple(resident.blocks)
        return Grant(resident.planned.index, resident.epoch, start, length, blocks, samples, phase, start)

    def _swap_in(self, resident: _Resident) -> Grant | None:
        """A first grant behind some of the tokens that were swapped out; they need not all come back."""
        start = self._choices.randint(1, min(resident.kept_tokens, resident.known - 1))
        length = self._choices.randint(1, resident.known - start)
        free = [block for block, owners in enumerate(self._owners) if not owners]
        needed, copied = -(-(start + length) // self._size), -(-start // self._size)
        if needed > len(free):
            return None
        resident.blocks = self._choices.sample(free, needed)
        for block in resident.blocks:
            self._owners[block] += 1
        pairs = zip(resident.kept[:copied], resident.blocks[:copied], strict=True)
        self._in += [BlockCopy(source, target) for source, target in pairs]
        self._read += resident.kept
        resident.kept = []
        samples = start + length == resident.known
        blocks = tuple(resident.blocks)
        return Grant(resident.planned.index, resident.epoch, start, length, blocks, samples, Phase.RECOMPUTE, start)

    def _shared(self, resident: _Resident, left: list[_Resident]) -> list[int]:
        """Blocks of another resident request that hold the same leading prompt tokens, at least one left to compute."""
        best: list[int] = []
        for other in left:
            if other is resident or not other.blocks:
                continue
            same = 0
            for mine, theirs in zip(resident.planned.prefix_blocks, other.planned.prefix_blocks, strict=False):
                if mine != theirs:
                    break
                same += 1
            prompts = min(other.planned.prompt_tokens, resident.planned.prompt_tokens)  # an answer is nobody else's
            written = min(other.written, resident.known - 1)
            whole = min(same, prompts // self._size, written // self._size)
            if whole > len(best):
                best = other.blocks[:whole]
        return best

    def _preempt(self, resident: _Resident) -> None:
        blocks = -(-resident.written // self._size)
        if blocks and resident.known > 1 and len(self._host_free) >= blocks and self._choices.random() < 0.6:
            resident.kept, self._host_free = self._host_free[:blocks], self._host_free[blocks:]
            resident.kept_tokens = resident.written
            self._out += [BlockCopy(*pair) for pair in zip(resident.blocks[:blocks], resident.kept, strict=True)]
            self.swaps += 1
        self._give_up(resident)
        self._released.append(resident.planned.index)
        resident.epoch += 1
        resident.ran = True
        self.preemptions += 1

    def _give_up(self, resident: _Resident) -> None:
        for block in resident.blocks:
            self._owners[block] -= 1
        resident.blocks = []
        resident.written = 0
