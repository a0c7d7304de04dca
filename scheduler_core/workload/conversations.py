"""Multi-turn sessions: turns that wait for answers, and prompts that repeat all before them."""

from array import array
from collections.abc import Iterator
from fractions import Fraction

from scheduler_core.spec.workload import Arrivals, Length, Sessions
from scheduler_core.types.errors import InputError, Problem
from scheduler_core.types.time import ns_from_s
from scheduler_core.workload.arrivals import arrival_times
from scheduler_core.workload.distributions import length_draw, scaled
from scheduler_core.workload.prefixes import SharedPrefixes
from scheduler_core.workload.slots import MOST_BLOCK_IDS, MOST_TOKENS, Slot
from scheduler_core.workload.uniform import Stream


class Conversations:
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

    def _release(self, session: int, turn: int, index_of: dict[tuple[int, int], int]) -> tuple[int, tuple[int, ...]]:
        if turn:
            return self._think, (index_of[session, turn - 1],)
        if self._closed is None or session < self._closed.concurrency:
            return self._starts[session], ()
        before = session - self._closed.concurrency
        return ns_from_s(self._closed.think_s), (index_of[before, self._turns[before] - 1],)

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
