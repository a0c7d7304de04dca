"""What a probe's token times say: the server's steps, their shapes and durations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from gpu_runner.calibrate.measured import Measured
from gpu_runner.calibrate.probe.design import WINDOW_STEPS, Placed
from gpu_runner.server.client.events import Chunks, Event, Over, Wrote
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.reasons import Outcome
from scheduler_core.types.shape import StepShape, causal_pairs
from scheduler_core.types.time import Ns

_NEAR_SHARE = 0.3  # of a decode step: stamps of one step lie no further apart
_LEAST_STEPS = 4
_SHORTEST_SHARE = 0.5  # of a decode step: what is shorter was two chunks that came together
_FAR = 3.0  # times: a round as far as that from the middle of all shows the machine, not the server
_STRETCHED = 1.5  # times a decode step: what is longer had a prompt in it


@dataclass(slots=True)
class Stream:
    """One request as the client saw it: when it was sent, and its chunks as (ns, tokens)."""

    sent_ns: Ns | None = None
    chunks: list[tuple[Ns, int]] = field(default_factory=list)
    finished: bool = False

    @property
    def first_ns(self) -> Ns:
        """Time of the first token."""
        return self.chunks[0][0]

    @property
    def last_ns(self) -> Ns:
        """Time of the last token."""
        return self.chunks[-1][0]

    def tokens_by(self, at_ns: Ns) -> int:
        """Tokens that had come by ``at_ns``."""
        return sum(tokens for at, tokens in self.chunks if at <= at_ns)


class Streams:
    """All requests of a round; `take` its events."""

    def __init__(self) -> None:
        self.by_request: dict[int, Stream] = {}

    def take(self, event: Event) -> None:
        """Note what an event says of a stream."""
        match event:
            case Wrote():
                self._of(event.request).sent_ns = event.at_ns
            case Chunks():
                for request, at_ns, tokens in event.rows:
                    self._of(request).chunks.append((at_ns, tokens))
            case Over():
                self._of(event.request).finished = event.outcome == Outcome.FINISHED

    def complete(self, placed: Placed) -> bool:
        """Whether every request of the point has its whole answer."""
        streams = [self.by_request.get(index) for index in (*placed.decoding, *placed.prompts)]
        return all(stream is not None and stream.finished and stream.chunks for stream in streams)

    def _of(self, request: int) -> Stream:
        return self.by_request.setdefault(request, Stream())


@dataclass(frozen=True, slots=True)
class Manners:
    """How the server makes its steps. ``budget`` is None where it does not say; ``mixes``: prompts share a step with
    requests that decode, else they have steps of their own.
    """

    budget: int | None
    prefill_cap: int | None
    mixes: bool

    def chunks(self, prompt: int, decoding: int) -> list[int]:
        """The parts in which a prompt is computed beside ``decoding`` requests; one where the budget is not known."""
        room = prompt if self.budget is None else max(1, self.budget - (decoding if self.mixes else 0))
        if self.prefill_cap:
            room = min(room, self.prefill_cap)
        return [min(room, prompt - start) for start in range(0, prompt, room)]


@dataclass(frozen=True, slots=True)
class Alone:
    """A prompt that found the server idle: its length, and the time from sending it to its first token."""

    prompt: int
    ttft_ns: Ns


@dataclass(slots=True)
class Read:
    """Everything read from one point: steps to fit (without point and round), single ones for their spread, prompts."""

    steps: list[tuple[str, StepShape, Ns]] = field(default_factory=list)
    singles: list[tuple[StepShape, Ns]] = field(default_factory=list)
    alone: list[Alone] = field(default_factory=list)


def read(placed: Placed, plan: Sequence[PlannedRequest], streams: Mapping[int, Stream], manners: Manners) -> Read:
    """The steps of a complete point."""
    return _Point(placed, plan, streams, manners).read()


def measured(readings: Sequence[tuple[int, int, Read]]) -> list[Measured]:
    """Steps to fit from (point, round, what was read); steps of one kind at one point count as one point.

    Of steps alike in one round the one with the middle duration stands for all, and a round whose middle is far from
    that of all rounds is left out: on a machine that is not the server's alone some steps are stretched many times.
    """
    kinds: dict[tuple[int, str], int] = {}
    alike: dict[tuple[int, int, int], dict[int, list[tuple[Ns, StepShape]]]] = {}
    for point, round_, found in readings:
        for kind, shape, duration in found.steps:
            number = kinds.setdefault((point, kind), len(kinds))
            rounds = alike.setdefault((number, shape.prefill_tokens, shape.prefill_pairs), {})
            rounds.setdefault(round_, []).append((duration, shape))
    steps: list[Measured] = []
    for (number, *_), rounds in alike.items():
        usual = {round_: sorted(found)[(len(found) - 1) // 2] for round_, found in rounds.items()}
        middle = median(duration for duration, _ in usual.values())
        near = {round_: item for round_, item in usual.items() if 1 / _FAR <= item[0] / middle <= _FAR}
        steps += [Measured(shape, duration, number, round_) for round_, (duration, shape) in near.items()]
    return steps


def _meanwhile(placed: Placed, streams: Mapping[int, Stream]) -> dict[int, Stream]:
    """The point's streams, and what was left of the one before or had begun of the next."""
    own = [streams[index] for index in (*placed.decoding, *placed.prompts)]
    begin, end = min(stream.sent_ns or 0 for stream in own), max(stream.last_ns for stream in own)
    return {
        index: stream
        for index, stream in streams.items()
        if stream.sent_ns is not None and stream.chunks and stream.sent_ns < end and stream.last_ns > begin
    }


class _Point:
    """One point as `read` reads it."""

    def __init__(
        self, placed: Placed, plan: Sequence[PlannedRequest], streams: Mapping[int, Stream], manners: Manners
    ) -> None:
        self._placed, self._manners = placed, manners
        self._reference = streams[placed.decoding[0]]
        self._streams = _meanwhile(placed, streams)
        self._prompts = {index: plan[index].prompt_tokens for index in self._streams}
        self._gaps = list(pairwise(self._reference.chunks))
        self._found = Read()
        self._pure = [gap for gap in self._gaps if not self._pending(gap[0][0], gap[1][0], 0)]
        steps = [(after - before) / tokens for (before, _), (after, tokens) in self._pure]
        self._step = median(steps) if steps else 0.0

    def read(self) -> Read:
        if len(self._pure) >= _LEAST_STEPS and self._step > 0:
            self._decode_windows()
            for index in self._placed.prompts:
                self._prompt(index)
        return self._found

    @property
    def _near(self) -> Ns:
        return round(_NEAR_SHARE * self._step)

    def _pending(self, begin: Ns, end: Ns, near: Ns) -> bool:
        """Whether some request that was sent before ``end`` had no token before ``begin``."""
        return any(
            (stream.sent_ns or 0) < end - near and stream.first_ns > begin + near for stream in self._streams.values()
        )

    def _decoding(self, begin: Ns, end: Ns) -> tuple[int, ...]:
        """Requests that decode in the step between ``begin`` and ``end``."""
        near = self._near
        return tuple(
            index
            for index, stream in self._streams.items()
            if stream.first_ns <= begin + near and stream.last_ns >= end - near
        )

    def _context(self, decoding: Sequence[int], at_ns: Ns) -> int:
        """KV positions that a decode step read which began at ``at_ns``."""
        return sum(self._prompts[index] + self._streams[index].tokens_by(at_ns + self._near) for index in decoding)

    def _decode_windows(self) -> None:
        """Runs of steps in which the same requests only decode, in windows of `WINDOW_STEPS`."""
        window: list[tuple[Ns, Ns, int]] = []
        held: tuple[int, ...] = ()
        for (before, _), (after, tokens) in self._gaps:
            decoding = self._decoding(before, after)
            pure = not self._pending(before, after, self._near)
            if window and (not pure or decoding != held or window[-1][1] != before):
                self._close(window, held)
                window = []
            if pure and decoding:
                held = decoding
                window.append((before, after, tokens))
                if sum(tokens for _, _, tokens in window) >= WINDOW_STEPS:
                    self._close(window, held)
                    window = []
        self._close(window, held)

    def _close(self, window: Sequence[tuple[Ns, Ns, int]], decoding: Sequence[int]) -> None:
        steps = sum(tokens for _, _, tokens in window)
        if steps < _LEAST_STEPS:
            return
        begin, end = window[0][0], window[-1][1]
        context = self._context(decoding, begin) + len(decoding) * (steps - 1) // 2
        shape = StepShape(0, len(decoding), context, 0)
        self._found.steps.append((f"decode {len(decoding)}", shape, round((end - begin) / steps)))
        self._found.singles += [(shape, round((after - before) / tokens)) for before, after, tokens in window]

    def _prompt(self, index: int) -> None:
        stream, prompt = self._streams[index], self._prompts[index]
        sent = stream.sent_ns or 0
        if self._reference.last_ns < sent:
            self._found.alone.append(Alone(prompt, stream.first_ns - sent))
        elif self._manners.mixes:
            self._mixed(index, stream.first_ns, sent)
        else:
            self._apart(prompt, stream.first_ns, sent)

    def _mixed(self, index: int, first: Ns, sent: Ns) -> None:
        """Steps that decode and compute a part of the prompt: those that end with its first token."""
        ticks = [at for at, _ in self._reference.chunks]
        last = min(range(len(ticks)), key=lambda place: abs(ticks[place] - first))
        prompt = self._prompts[index]
        decoding = self._decoding(ticks[last - 1], ticks[last]) if last else ()
        chunks = self._manners.chunks(prompt, len(decoding))
        begin = last - len(chunks)
        if abs(ticks[last] - first) > self._near or begin < 1 or not decoding:
            return
        if sent > ticks[begin] + self._near or self._reference.chunks[last][1] != 1:
            return
        durations = [ticks[place + 1] - ticks[place] for place in range(begin, last)]
        usual = self._step if self._manners.budget is None else max(self._step, *durations)
        if ticks[begin] - ticks[begin - 1] > _STRETCHED * usual or min(durations) < _SHORTEST_SHARE * self._step:
            return  # another step had a part of it, or its first token came with a later one
        start = 0
        for place, duration, length in zip(range(begin, last), durations, chunks, strict=True):
            shape = StepShape(
                length, len(decoding), self._context(decoding, ticks[place]), causal_pairs(start, length), start == 0
            )
            self._found.steps.append((f"prompt {prompt}", shape, duration))
            start += length

    def _apart(self, prompt: int, first: Ns, sent: Ns) -> None:
        """A step that computes the prompt alone: from the last token of those that decode to its own first."""
        before = [at for at, _ in self._reference.chunks if at < first - self._near]
        if len(self._manners.chunks(prompt, 0)) != 1 or not before or sent > before[-1]:
            return
        shape = StepShape(prompt, 0, 0, causal_pairs(0, prompt), 1)
        self._found.steps.append((f"prompt {prompt}", shape, first - before[-1]))
