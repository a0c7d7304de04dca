"""Requests drawn from distributions: open loop, closed loop, and sessions in either."""

from array import array
from collections.abc import Iterable, Iterator
from fractions import Fraction

from scheduler_core.spec.workload import Arrivals, Length, Lengths, Prefix, Sessions, WorkloadSpec
from scheduler_core.types.errors import InputError, Problem
from scheduler_core.types.time import ns_from_s
from scheduler_core.workload.arrivals import arrival_times
from scheduler_core.workload.distributions import exact, length_draw, scaled
from scheduler_core.workload.slots import MOST_BLOCK_IDS, MOST_TOKENS, Offered, Slot
from scheduler_core.workload.uniform import BITS, ONE, Stream


def offer(spec: WorkloadSpec, arrivals: Arrivals, lengths: Lengths) -> Offered:
    """The requests of ``spec`` with these arrivals and lengths (its own, or those of its profile)."""
    count = spec.requests
    assert count is not None  # required beside arrivals and profile, validated by the spec
    scale = exact(lengths.scale)
    prompts = _draws("prompt", lengths.prompt, scale, spec)
    outputs = _draws("output", lengths.output, scale, spec)
    prefixes = SharedPrefixes(spec.prefix, spec.block_size, spec.seed)
    slots: Iterable[Slot]
    if spec.sessions is not None:
        plan = _Conversations(spec.sessions, arrivals, count, spec.seed)
        slots = plan.slots(prompts, outputs, prefixes)
    elif arrivals.closed is not None:
        slots = _closed(arrivals, prompts, outputs, prefixes)
    else:
        slots = _open(arrival_times(arrivals, count, seed=spec.seed), prompts, outputs, prefixes)
    return Offered(slots, outputs, spec.block_size, tuple(prefixes.notes()))


def _draws(name: str, length: Length, scale: Fraction, spec: WorkloadSpec) -> "array[int]":
    """Token counts of all requests; `InputError` names the field when one is beyond any model."""
    assert spec.requests is not None
    draw, stream = length_draw(length), Stream(spec.seed, name)
    drawn = array("q")
    for index in range(spec.requests):
        count = scaled(draw(stream.at(index)), scale)
        if count > MOST_TOKENS:
            where = f"lengths.{name}" if spec.profile is None else "lengths_scale"
            message = f"gives request {index} {count:,} tokens; a request may have {MOST_TOKENS:,}"
            raise InputError([Problem(where, message)])
        drawn.append(count)
    return drawn


class SharedPrefixes:
    """Which common prefix, if any, a prompt starts with, as block ids from 0 up."""

    def __init__(self, prefix: Prefix | None, block_size: int, seed: int) -> None:
        self.block_size = block_size
        self._blocks = 0 if prefix is None else prefix.tokens // block_size
        self._groups = 0 if prefix is None else prefix.groups
        self._limit = 0 if prefix is None else round(exact(prefix.share) * ONE)
        self._whether = Stream(seed, "prefix")
        self._which = Stream(seed, "prefix-group")
        self._whole: dict[int, tuple[int, ...]] = {}
        self._remainder = 0 if prefix is None else prefix.tokens % block_size

    @property
    def first_free_id(self) -> int:
        """The smallest block id that no prefix uses."""
        return self._groups * self._blocks

    def ids(self, who: int, prompt_tokens: int) -> tuple[int, ...]:
        """Ids of the whole blocks that a prompt of this length by ``who`` shares with its group."""
        if not self._limit or self._whether.at(who) >= self._limit:
            return ()
        group = self._which.at(who) * self._groups >> BITS
        return self._of_group(group, min(self._blocks, prompt_tokens // self.block_size))

    def _of_group(self, group: int, blocks: int) -> tuple[int, ...]:
        """The first ids of a group; whole prefixes are kept, so that a million requests share one tuple."""
        first = group * self._blocks
        if blocks < self._blocks:
            return tuple(range(first, first + blocks))
        if group not in self._whole:
            self._whole[group] = tuple(range(first, first + blocks))
        return self._whole[group]

    def notes(self) -> Iterator[str]:
        """What a reader should know about the rounding to blocks."""
        if self._remainder:
            yield (
                f"shared prefixes are cut to {self._blocks * self.block_size} tokens: "
                f"{self._blocks} whole blocks of {self.block_size}"
            )


def _open(
    times: Iterable[int], prompts: "array[int]", outputs: "array[int]", prefixes: SharedPrefixes
) -> Iterator[Slot]:
    for index, (at, prompt, output) in enumerate(zip(times, prompts, outputs, strict=True)):
        yield Slot(at, prompt, output, index, prefix_blocks=prefixes.ids(index, prompt))


def _closed(
    arrivals: Arrivals, prompts: "array[int]", outputs: "array[int]", prefixes: SharedPrefixes
) -> Iterator[Slot]:
    """All users start at 0; request ``i`` waits for the answer to ``i - concurrency``, that user's last one."""
    assert arrivals.closed is not None
    users, think = arrivals.closed.concurrency, ns_from_s(arrivals.closed.think_s)
    for index, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        after = index - users if index >= users else None
        at = 0 if after is None else think
        yield Slot(at, prompt, output, index, after=after, prefix_blocks=prefixes.ids(index, prompt))


class _Conversations:
    """Sessions laid out as rows in the order of the plan.

    The order is that of planned times, in which an answer takes no time: a turn is planned a think time after the one
    before it. Among rows planned for one instant, those with fewer turns before them come first; so a row's dependency
    always has a smaller index.
    """

    def __init__(self, sessions: Sessions, arrivals: Arrivals, count: int, seed: int) -> None:
        self._think = ns_from_s(sessions.think_s)
        self._turns = _turn_counts(sessions.turns, count, Stream(seed, "turns"))
        self._closed = arrivals.closed
        if self._closed is None:
            thin = Fraction(len(self._turns), count)
            self._starts = list(arrival_times(arrivals, len(self._turns), seed=seed, thin=thin))
            self._depths = [0] * len(self._turns)
        else:
            self._starts, self._depths = self._user_timelines(self._closed.concurrency)

    def _user_timelines(self, users: int) -> tuple[list[int], list[int]]:
        """Planned start of each session, and the turns before it; user ``u`` holds sessions u, u + users, ..."""
        assert self._closed is not None
        pause = ns_from_s(self._closed.think_s)
        starts, depths = [0] * len(self._turns), [0] * len(self._turns)
        for session in range(users, len(self._turns)):
            before = session - users
            starts[session] = starts[before] + (self._turns[before] - 1) * self._think + pause
            depths[session] = depths[before] + self._turns[before]
        return starts, depths

    def _order(self) -> tuple[list[tuple[int, int]], dict[tuple[int, int], int]]:
        """(session, turn) of each row, and the row of each (session, turn)."""
        rows = [
            (start + turn * self._think, depth + turn, session, turn)
            for session, (start, depth, turns) in enumerate(zip(self._starts, self._depths, self._turns, strict=True))
            for turn in range(turns)
        ]
        rows.sort()
        order = [(session, turn) for _, _, session, turn in rows]
        return order, {key: index for index, key in enumerate(order)}

    def slots(self, prompts: "array[int]", outputs: "array[int]", prefixes: SharedPrefixes) -> Iterator[Slot]:
        """Rows in index order; the prompt of a turn is all before it plus this row's drawn length."""
        order, index_of = self._order()
        contexts = self._contexts(order, prompts, outputs)
        blocks = self._block_ids(contexts, prefixes)
        for index, (session, turn) in enumerate(order):
            at, after = self._release(session, turn, index_of)
            prompt = contexts[session][turn]
            ids = blocks[session][: -(-prompt // prefixes.block_size)]
            yield Slot(at, prompt, outputs[index], session, after, session, turn, ids)

    def _release(self, session: int, turn: int, index_of: dict[tuple[int, int], int]) -> tuple[int, int | None]:
        if turn:
            return self._think, index_of[session, turn - 1]
        if self._closed is None or session < self._closed.concurrency:
            return self._starts[session], None
        before = session - self._closed.concurrency
        return ns_from_s(self._closed.think_s), index_of[before, self._turns[before] - 1]

    def _contexts(
        self, order: list[tuple[int, int]], prompts: "array[int]", outputs: "array[int]"
    ) -> "list[array[int]]":
        """Prompt length of each turn of each session."""
        contexts = [array("q") for _ in self._turns]
        ends = [0] * len(self._turns)
        for index, (session, _) in enumerate(order):
            prompt = ends[session] + prompts[index]
            if prompt > MOST_TOKENS:
                message = f"a conversation grows to {prompt:,} tokens; a request may have {MOST_TOKENS:,}"
                raise InputError([Problem("sessions.turns", message)])
            contexts[session].append(prompt)
            ends[session] = prompt + outputs[index]
        return contexts

    def _block_ids(self, contexts: "list[array[int]]", prefixes: SharedPrefixes) -> list[tuple[int, ...]]:
        """Ids of all blocks of each session's longest prompt: those of its prefix group, then its own."""
        free = prefixes.first_free_id
        ids = []
        for session, prompts in enumerate(contexts):
            shared = prefixes.ids(session, prompts[0])
            own = -(-prompts[-1] // prefixes.block_size) - len(shared)
            if free + own > MOST_BLOCK_IDS:
                message = f"conversations need over {MOST_BLOCK_IDS:,} prefix block ids; use larger blocks"
                raise InputError([Problem("block_size", message)])
            ids.append((*shared, *range(free, free + own)))
            free += own
        return ids


def _turn_counts(turns: Length, requests: int, stream: Stream) -> list[int]:
    """Turns of each session, so that they add up to ``requests``; the last session is cut short if need be."""
    draw = length_draw(turns)
    counts: list[int] = []
    left = requests
    while left:
        counts.append(min(left, scaled(draw(stream.at(len(counts))), Fraction(1))))
        left -= counts[-1]
    return counts
