"""Waiting requests go to another instance once theirs has been saturated for long (A4).

::

    waiting at the source ── saturated for a whole window ── on the link ── waiting at the destination

An instance is saturated while the prompts that wait there are estimated to take longer than a bound. One look at which
they are not begins the window anew, and so does what is done about it: one burst moves nobody.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from scheduler_core.cluster.links import Links, Moved
from scheduler_core.cluster.load import Load
from scheduler_core.cluster.router import Estimate
from scheduler_core.cluster.sustained import Sustained
from scheduler_core.sched.instance import Instance
from scheduler_core.types.cluster_records import Reassigned
from scheduler_core.types.records import Record
from scheduler_core.types.time import Ns

TOKEN_BYTES = 4
"""What a prompt token takes on the link: its id."""

Reach = Callable[[int, Collection[int]], Collection[int]]
"""Of some instances those that a request may go to."""


@dataclass(frozen=True, slots=True)
class ReliefRules:
    """Saturated: more than ``wait_ns`` of prompts wait, at every look (``every_ns``) of ``window_ns``."""

    wait_ns: Ns
    window_ns: Ns
    every_ns: Ns


@dataclass(frozen=True, slots=True, eq=False)
class Going:
    """A request on its way."""

    request: int
    source: int
    destination: int


class _Wait(NamedTuple):
    """What is estimated of an instance: how long its waiting prompts take."""

    ns: Ns
    member: int


@dataclass
class Relief:
    """Moves requests that were never admitted, the last in line first, and each at most once.

    A request goes to the instance where waiting prompts take least, if it is sooner there with its own prompt than it
    is where it waits. Its token ids take their time on the link; until they are there, it waits nowhere.
    """

    instances: Sequence[Instance]
    links: Links
    estimate: Estimate
    rules: ReliefRules
    records: list[Record] = field(default_factory=list)
    _saturated: dict[int, Sustained] = field(default_factory=dict)
    _going: dict[int, Going] = field(default_factory=dict)
    _moved: set[int] = field(default_factory=set)
    _tokens: dict[int, int] = field(default_factory=dict)
    _look_ns: Ns = 0

    def __post_init__(self) -> None:
        self._look_ns = self.rules.every_ns

    def next_ns(self) -> Ns:
        """When `look` is due."""
        return self._look_ns

    def look(self, now_ns: Ns, members: Collection[int], loads: Sequence[Load], reach: Reach) -> None:
        """Start what the rules ask for among ``members``, if a look is due."""
        if now_ns < self._look_ns:
            return
        self._look_ns = now_ns - now_ns % self.rules.every_ns + self.rules.every_ns
        tokens = {member: loads[member].prefill_tokens for member in members}
        for going in self._going.values():
            self._shift(tokens, going, self._tokens[going.request])
        for member in members:
            sustained = self._saturated.setdefault(member, Sustained(self.rules.window_ns))
            if sustained.due(int(self._wait(member, tokens) > self.rules.wait_ns), now_ns):
                sustained.done(1, now_ns)
                self._relieve(member, tokens, reach, now_ns)

    def landed(self, landed: Sequence[Moved]) -> list[Going]:
        """Who has come where it was sent."""
        arrived = [moved.flow for moved in landed if isinstance(moved.flow, Going)]
        for going in arrived:
            del self._going[going.request]
        return arrived

    def tell(self, going: Going, action: str, now_ns: Ns, wait_ns: Ns = 0, there_ns: Ns = 0) -> None:
        """Record that a request leaves, arrives or returns, as `Reassigned` has it."""
        ways = going.request, going.source, going.destination
        bound_ns = self.rules.wait_ns if action == "leaves" else 0
        self.records.append(Reassigned(now_ns, *ways, action, wait_ns, bound_ns, there_ns))

    def forget(self, request: int, now_ns: Ns) -> None:
        """A request is over, or lost with the instance that it left."""
        going = self._going.pop(request, None)
        if going is not None:
            self.links.between(going.source, going.destination).stop(going, now_ns)
        self._moved.discard(request)
        self._tokens.pop(request, None)

    def _relieve(self, source: int, tokens: dict[int, int], reach: Reach, now_ns: Ns) -> None:
        """Send away from the end of the line until the bound is kept, or nobody would be sooner elsewhere."""
        for request, prompt in reversed(self.instances[source].unstarted()):
            wait_ns = self._wait(source, tokens)
            if wait_ns <= self.rules.wait_ns:
                return
            others = [_Wait(self._wait(m, tokens), m) for m in reach(request, tokens.keys()) if m != source]
            if request in self._moved or not others:
                continue
            there = min(others)
            if self.estimate(there.member, tokens[there.member] + prompt) >= wait_ns:
                continue
            going = self._going[request] = Going(request, source, there.member)
            self._moved.add(request)
            self._tokens[request] = prompt
            self._shift(tokens, going, prompt)
            self.instances[source].hold(request)
            self.links.between(source, there.member).start(going, prompt * TOKEN_BYTES, now_ns)
            self.tell(going, "leaves", now_ns, wait_ns, there.ns)

    def _wait(self, member: int, tokens: dict[int, int]) -> Ns:
        return self.estimate(member, tokens[member]) if tokens[member] else 0

    @staticmethod
    def _shift(tokens: dict[int, int], going: Going, prompt: int) -> None:
        for member, sign in ((going.source, -1), (going.destination, 1)):
            if member in tokens:
                tokens[member] += sign * prompt
