"""What a probe sends: requests that decode together while prompts come one after another, as a plan of requests.

All tokens of one step reach the client together, so a stream that decodes shows how long each step takes. Of every
point some requests begin together and decode; when the shortest of them has ended, prompts follow, each sent when the
one before has its answer. So the same streams show steps that only decode and steps with a prompt in them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.time import NS_PER_MS

WINDOW_STEPS = 8
"""Steps that are measured as one: a stamp may be late by a part of a step, but not by a part of eight."""
_BATCHES = (2, 32, 8, 1, 64, 16, 4, 128, 48, 256)
_CONTEXTS = (256, 64, 1024, 512, 2048, 4096, 8192)
_PROMPTS = (512, 64, 1024, 256, 2048, 128, 4096, 32)
_PROMPTS_EACH = 3
_TOGETHER_TOKENS = 2 * WINDOW_STEPS + 3
_BETWEEN_STEPS = 4  # of the streams, while a prompt has not yet come to its step
_SPARE_TOKENS = 8
_PAUSE_NS = 150 * NS_PER_MS
_KV_SHARE = 0.9
_UNKNOWN_BUDGET = 2048
_LONGEST_OPENING_STEPS = 64


@dataclass(frozen=True, slots=True)
class Limits:
    """What the server can hold, as far as it says: None where it does not."""

    model_length: int
    kv_tokens: int | None
    batch: int | None
    budget: int | None

    @property
    def chunk(self) -> int:
        """Tokens of a step, or what is taken for them in counting steps ahead."""
        return self.budget or _UNKNOWN_BUDGET


@dataclass(frozen=True, slots=True)
class Point:
    """``batch`` requests of ``context`` tokens decode together, then all but one while ``prompts`` come in turn."""

    number: int
    batch: int
    context: int
    prompts: tuple[int, ...]

    def output(self, limits: Limits) -> int:
        """Tokens that each request makes, so that the first still decodes when the last prompt is answered."""
        steps = sum(self._steps(prompt, limits) + _BETWEEN_STEPS for prompt in self.prompts)
        return self.opening_steps(limits) + _TOGETHER_TOKENS + steps + _SPARE_TOKENS

    def opening_steps(self, limits: Limits) -> int:
        """Steps until all that decode together have begun."""
        return self._steps(self.batch * self.context, limits)

    def tokens(self, limits: Limits) -> int:
        """KV positions that it holds at most."""
        return self.batch * (self.context + self.output(limits)) + max(self.prompts) + 1

    def _steps(self, tokens: int, limits: Limits) -> int:
        return -(-tokens // max(1, limits.chunk - self.batch))


@dataclass(frozen=True, slots=True)
class Placed:
    """A point's requests in a plan, by index: those that decode, the shortest last, and the prompts."""

    point: Point
    decoding: tuple[int, ...]
    prompts: tuple[int, ...]


def points(limits: Limits) -> list[Point]:
    """Every point that fits, the most telling first: whoever has little time measures a beginning of the list."""
    lengths = [length for length in _PROMPTS if length < limits.model_length] or [limits.model_length // 2]
    turn = cycle(lengths)
    found: list[Point] = []
    for batch, context in _by_rank(_BATCHES, _CONTEXTS):
        prompts = tuple(next(turn) for _ in range(_PROMPTS_EACH))
        point = Point(len(found), batch, context, prompts)
        if _fits(point, limits):
            found.append(point)
    return found


def plan(chosen: Sequence[Point], limits: Limits, *, seed: int) -> tuple[list[PlannedRequest], list[Placed]]:
    """The requests that measure ``chosen`` in their order, each point after the one before it."""
    requests: list[PlannedRequest] = []
    placed: list[Placed] = []
    before: tuple[int, ...] = ()

    def add(prompt: int, output: int, after: tuple[int, ...], wait_ns: int) -> int:
        index = len(requests)
        made = PlannedRequest(index, wait_ns, prompt, output, output, seed=seed * 1_000_003 + index, after=after)
        requests.append(made)
        return index

    for point in chosen:
        output = point.output(limits)
        lengths = [*[output] * (point.batch - 1), _TOGETHER_TOKENS]
        decoding = [add(point.context, length, before, _PAUSE_NS) for length in lengths]
        prompts: list[int] = []
        for prompt in point.prompts:
            prompts.append(add(prompt, 1, tuple((prompts or decoding)[-1:]), 0))
        before = (*decoding, *prompts)
        placed.append(Placed(point, tuple(decoding), tuple(prompts)))
    return requests, placed


def _fits(point: Point, limits: Limits) -> bool:
    longest = point.context + point.output(limits)
    if longest > limits.model_length or (limits.batch is not None and point.batch > limits.batch):
        return False
    if point.opening_steps(limits) > _LONGEST_OPENING_STEPS:
        return False
    return limits.kv_tokens is None or point.tokens(limits) <= _KV_SHARE * limits.kv_tokens


def _by_rank(first: Sequence[int], second: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Every pair, those from the beginnings of both first."""
    ranked = sorted((a + b, a, b) for a in range(len(first)) for b in range(len(second)))
    for _, a, b in ranked:
        yield first[a], second[b]
