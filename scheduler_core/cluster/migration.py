"""Live migration: a request goes on decoding while its KV is copied to another instance (LX-04 to LX-06).

::

    running ── stage 1: all full blocks but the one being written ── stage 2: what came since ── ...
       at the source, which decodes on                                 when little is left: stop, copy the rest
                                                                       └─ landed at the destination, free at the source

Whatever goes wrong before the end costs nothing but the copies: the request runs on at its source.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from scheduler_core.cluster.effects import Effects
from scheduler_core.cluster.links import Links, Moved
from scheduler_core.cluster.load import Load
from scheduler_core.cluster.relief import Reach
from scheduler_core.cluster.rules import Faults
from scheduler_core.sched.instance import Instance
from scheduler_core.sched.memory import blocks_for
from scheduler_core.sched.moving import Leaving, Reserved
from scheduler_core.types.cluster_records import Landed, Migration, Parked, Transferred
from scheduler_core.types.records import Record
from scheduler_core.types.time import NEVER, Ns


class Pick(StrEnum):
    """Which running request of an instance goes (LX-05)."""

    SHORTEST = "shortest"
    LONGEST = "longest"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class MigrationRules:
    """When to migrate. Load is the KV tokens of all requests of an instance over what its pool holds (LX-01), with
    ``headroom`` more where an urgent one is (LX-02).

    Every ``every_ns`` the most loaded instance above ``above`` is paired with the least loaded below it, and so on
    inwards; what is moved must narrow the gap without turning it round, and leave the destination below (LX-04).
    The request is stopped once ``last_blocks`` or fewer are left to copy; a copy that is not as far in ``most_stages``
    is dropped. ``pick`` says which request goes.
    """

    every_ns: Ns
    above: float
    pick: Pick
    last_blocks: int
    most_stages: int
    kv_bytes_per_token: int
    headroom: int = 0


@dataclass(frozen=True, slots=True)
class Ground:
    """What migrations work on: instances and loads by index, links, and the instances among which requests may move:
    all, or those of each tier."""

    instances: Sequence[Instance]
    loads: Sequence[Load]
    links: Links
    among: Sequence[frozenset[int]]


@dataclass(slots=True, eq=False)
class Move:
    """A migration under way. ``copied`` positions were given to the link; ``left`` is set once the request stopped."""

    request: int
    source: int
    destination: int
    reserved: Reserved
    copied: int
    stage: int = 1
    on_link: bool = False
    stopping: bool = False
    left: Leaving | None = None


@dataclass
class Migrations:
    """All migrations under way, one at a time for each instance."""

    ground: Ground
    rules: MigrationRules
    faults: Faults
    records: list[Record] = field(default_factory=list)
    _moves: dict[int, Move] = field(default_factory=dict)
    _silent: set[int] = field(default_factory=set)
    _look_ns: Ns = 0
    _count: int = 0

    def __post_init__(self) -> None:
        self._look_ns = self.rules.every_ns

    # --- events ------------------------------------------------------------------------------------------------

    def look(self, now_ns: Ns, destinations: Collection[int], sources: Collection[int], reach: Reach) -> None:
        """Start what the rules ask for, if a look is due. ``sources`` beyond ``destinations`` are to be emptied."""
        if now_ns < self._look_ns:
            return
        self._look_ns = now_ns - now_ns % self.rules.every_ns + self.rules.every_ns
        busy = {index for move in self._moves.values() for index in (move.source, move.destination)}
        for ground in self.ground.among:
            free = ground - busy
            to = sorted((self._load(index), index) for index in destinations if index in free)
            out = sorted((index in destinations, -self._load(index), index) for index in sources if index in free)
            for (stays, load, source), (least, destination) in zip(out, to, strict=False):
                if source == destination or (stays and (-load <= self.rules.above or least >= self.rules.above)):
                    break
                request = self._pick(source, destination, reach, empties=not stays)
                if request is not None:
                    self._start(request, source, destination, now_ns)

    def settle(self, now_ns: Ns, landed: Sequence[Moved], effects: Effects) -> None:
        """Go on with every migration that can."""
        for moved in landed:
            move = moved.flow
            if isinstance(move, Move) and self._moves.get(move.request) is move:
                self._copied(move, moved, now_ns, effects)
        for move in list(self._moves.values()):
            if self._unheard(move):
                continue
            if move.left is None and not self._runs(move):
                self._drop(move, "preempted", now_ns, effects)
            elif move.stopping and not move.on_link and move.left is None:
                self._stop(move, now_ns, effects)

    def forget(self, request: int, now_ns: Ns, effects: Effects) -> None:
        """A request is over, or lost with its source, wherever its migration is."""
        move = self._moves.get(request)
        if move is not None:
            self._drop(move, "ended", now_ns, effects)

    def silence(self, member: int, now_ns: Ns) -> None:
        """``member`` died: copies from or to it stop, which nobody knows yet."""
        self._silent.add(member)
        for move in self._moves.values():
            if self._unheard(move):
                self._stop_link(move, now_ns)

    def lost(self, member: int, now_ns: Ns, effects: Effects) -> None:
        """It is known that ``member`` died: who was on the way there runs on at its source."""
        for move in list(self._moves.values()):
            if move.destination == member:
                self._drop(move, "instance_died", now_ns, effects)

    def back(self, member: int) -> None:
        """``member`` can be heard again."""
        self._silent.discard(member)

    def next_ns(self) -> Ns:
        """When `look` is due."""
        return self._look_ns if len(self.ground.instances) > 1 else NEVER

    def reserved_at(self, member: int) -> set[int]:
        """Requests that have a place, but are not yet, at ``member``."""
        return {move.request for move in self._moves.values() if move.destination == member}

    # --- one migration -----------------------------------------------------------------------------------------

    def _start(self, request: int, source: int, destination: int, now_ns: Ns) -> None:
        instance = self.ground.instances[source]
        left = instance.leaving(request)
        size = instance.policy.limits.block_size
        full = max(0, blocks_for(left.computed, size) - 1) * size
        reserved = self.ground.instances[destination].reserve(left._replace(computed=full), now_ns)
        if not isinstance(reserved, Reserved):
            return
        move = self._moves[request] = Move(request, source, destination, reserved, min(reserved.hit_tokens, full))
        self._copy(move, full, now_ns)
        self._say(move, "started", now_ns)

    def _copy(self, move: Move, tokens: int, now_ns: Ns) -> None:
        """Send positions up to ``tokens``; with none to send the stage is over at once."""
        size = max(0, tokens - move.copied) * self.rules.kv_bytes_per_token
        move.copied = max(move.copied, tokens)
        move.on_link = True
        self.ground.links.between(move.source, move.destination).start(move, size, now_ns)

    def _copied(self, move: Move, moved: Moved, now_ns: Ns, effects: Effects) -> None:
        move.on_link = False
        if moved.size:
            ways = move.request, move.source, move.destination
            self.records.append(Transferred(now_ns, moved.start_ns, *ways, moved.size, moved.alone_ns))
        if move.left is not None:
            self._land(move, move.left, now_ns, effects)
            return
        if not self._runs(move):
            return  # `settle` drops it
        source = self.ground.instances[move.source]
        size, done = source.policy.limits.block_size, source.leaving(move.request).computed
        move.stage += 1
        if blocks_for(done - move.copied, size) <= self.rules.last_blocks:
            move.stopping = True
        elif move.stage >= self.rules.most_stages:
            self._drop(move, "too_many_stages", now_ns, effects)
        else:
            self._next_stage(move, max(0, blocks_for(done, size) - 1) * size, now_ns, effects)

    def _next_stage(self, move: Move, tokens: int, now_ns: Ns, effects: Effects) -> None:
        if not self.ground.instances[move.destination].extend(move.request, tokens):
            self._drop(move, "no_room", now_ns, effects)
            return
        self._copy(move, tokens, now_ns)
        self._say(move, "stage", now_ns)

    def _stop(self, move: Move, now_ns: Ns, effects: Effects) -> None:
        """Take the request out of the steps, unless one of its own runs, and copy what is left."""
        source = self.ground.instances[move.source]
        if source.in_step(move.request):
            return
        left = source.leaving(move.request)
        if not self.ground.instances[move.destination].extend(move.request, left.computed):
            self._drop(move, "no_room", now_ns, effects)
            return
        source.park(move.request)
        move.left = left
        self.records.append(Parked(now_ns, move.request, move.source))
        self._copy(move, left.computed, now_ns)
        self._say(move, "stopped", now_ns)

    def _land(self, move: Move, left: Leaving, now_ns: Ns, effects: Effects) -> None:
        self._count += 1
        source = self.ground.instances[move.source]
        if self.faults.broken(move.request, -self._count):
            self._drop(move, "broken_off", now_ns, effects)
            return
        del self._moves[move.request]
        self.ground.instances[move.destination].land(move.request, left.computed, known=left.known)
        source.depart(move.request)
        self._say(move, "landed", now_ns)
        self.records.append(Landed(now_ns, move.request, move.destination, move.reserved.epoch, left.computed))
        effects.moved.append((move.request, move.destination))
        effects.touched.update((move.source, move.destination))

    def _drop(self, move: Move, reason: str, now_ns: Ns, effects: Effects) -> None:
        """Give the place up; a request that had stopped goes on where it was."""
        del self._moves[move.request]
        self._stop_link(move, now_ns)
        self.ground.instances[move.destination].depart(move.request)
        effects.touched.add(move.destination)
        self._say(move, "dropped", now_ns, reason)
        if move.left is not None and reason != "ended":
            self.ground.instances[move.source].stay(move.request)
            effects.touched.add(move.source)
            left = move.left
            self.records.append(Landed(now_ns, move.request, move.source, left.epoch - 1, left.computed, stayed=True))

    def _unheard(self, move: Move) -> bool:
        return move.source in self._silent or move.destination in self._silent

    def _stop_link(self, move: Move, now_ns: Ns) -> None:
        self.ground.links.between(move.source, move.destination).stop(move, now_ns)

    # --- choices -----------------------------------------------------------------------------------------------

    def _load(self, index: int) -> float:
        load = self.ground.loads[index]
        return (load.kv_tokens + (self.rules.headroom if load.urgent else 0)) / self._capacity(index)

    def _capacity(self, index: int) -> int:
        limits = self.ground.instances[index].policy.limits
        return limits.kv_blocks * limits.block_size

    def _runs(self, move: Move) -> bool:
        return self.ground.instances[move.source].decodes(move.request)

    def _pick(self, source: int, destination: int, reach: Reach, *, empties: bool) -> int | None:
        """Who goes: nobody that is mid-prefill (LX-05); where a pool is emptied, the gap does not matter."""
        instance = self.ground.instances[source]
        found = [(tokens, request) for request, tokens in instance.decoding() if request not in self._moves]
        if self.rules.pick is Pick.LAST:
            found.reverse()
        else:
            found.sort(key=lambda item: item[0], reverse=self.rules.pick is Pick.LONGEST)
        gap, least = self._load(source) - self._load(destination), self._load(destination)
        for tokens, request in found:
            there = least + tokens / self._capacity(destination)
            narrower = gap - tokens / self._capacity(source) - tokens / self._capacity(destination) >= 0
            fits = (empties and there < 1) or (narrower and there < self.rules.above)
            if fits and reach(request, (destination,)):
                return request
        return None

    def _say(self, move: Move, action: str, now_ns: Ns, reason: str = "") -> None:
        self.records.append(
            Migration(now_ns, move.request, move.source, move.destination, action, move.stage, move.copied, reason)
        )
