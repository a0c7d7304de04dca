"""Plays requests on an executor by arbitrary plans: a scheduler with no policy at all, for tests of token identity."""

import random
from dataclasses import dataclass, field
from itertools import count

from gpu_runner.engine.executor import TorchExecutor
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.plan import Grant, GrantResult, Phase, StepPlan, StepResult

_INDEX = count()
_PLAN = count()


def request(prompt: int, output: int, *, seed: int = 0, prefix: tuple[int, ...] = ()) -> PlannedRequest:
    """A request with an index of its own."""
    return PlannedRequest(next(_INDEX), 0, prompt, output, output, seed=seed, prefix_blocks=prefix)


@dataclass(slots=True)
class Answer:
    """Tokens of a request, and the positions at which the engine reported a tie."""

    tokens: list[int] = field(default_factory=list)
    ties: set[int] = field(default_factory=set)

    def take(self, result: GrantResult) -> None:
        """Append what a grant yielded."""
        if result.token is not None:
            if result.tie_margin is not None:
                self.ties.add(len(self.tokens))
            self.tokens.append(result.token)

    def agrees(self, other: "Answer") -> bool:
        """Equal up to the first tie that either reported: behind a tie the two may go different ways."""
        end = min([*self.ties, *other.ties, len(self.tokens), len(other.tokens)])
        full = end == len(self.tokens) == len(other.tokens)
        return self.tokens[:end] == other.tokens[:end] and (full or bool(self.ties or other.ties))


def step(executor: TorchExecutor, *grants: Grant, released: tuple[int, ...] = ()) -> StepResult:
    """Launch one plan and wait for it."""
    executor.launch(StepPlan(next(_PLAN), grants, released))
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

    @property
    def known(self) -> int:
        return self.planned.prompt_tokens + len(self.answer.tokens)


class Chaos:
    """Serves requests with random batches, chunks, preemptions and prefix hits until all have ended.

    Blocks are counted here by hand, so a test can also say that the engine touched none but those it was given.
    """

    def __init__(self, executor: TorchExecutor, choices: random.Random) -> None:
        self._executor = executor
        self._choices = choices
        self._size = executor.settings.block_size
        self._owners = [0] * executor.settings.kv_blocks
        self._released: list[int] = []
        self.preemptions = 0
        self.hits = 0

    def serve(self, requests: list[PlannedRequest]) -> list[Answer]:
        """The answers, in the order of ``requests``."""
        all_ = [_Resident(planned) for planned in requests]
        for resident in all_:
            self._executor.open(resident.planned)
        while left := [r for r in all_ if len(r.answer.tokens) < r.planned.output_tokens]:
            self._turn(left)
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
        released, self._released = tuple(self._released), []
        result = step(self._executor, *(grant for _, grant in grants), released=released)
        for (resident, grant), yielded in zip(grants, result.grants, strict=True):
            resident.written = grant.start + grant.length
            resident.answer.take(yielded)
            assert yielded.last == (len(resident.answer.tokens) == resident.planned.output_tokens)
            if yielded.last:
                self._give_up(resident)

    def _holds(self, resident: _Resident, grants: list[tuple[_Resident, Grant]]) -> bool:
        return any(granted is resident for granted, _ in grants)

    def _grant(self, resident: _Resident, left: list[_Resident]) -> Grant | None:
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
