"""Two drives of one scenario: by our instance, and by vLLM's scheduler in its own interpreter."""

from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from bench.peers.process import Peer
from scheduler_core.sched.plan import Planned
from scheduler_core.types.plan import GrantResult, StepResult
from scheduler_core.types.records import Preempted
from tests.parity.scenarios import Offer, Scenario

STEPS = 5_000


@dataclass(frozen=True, slots=True)
class Step:
    """What one step decided: grants in order as (id, start, tokens, new blocks), and who was preempted, in order."""

    grants: tuple[tuple[int, int, int, tuple[int, ...]], ...]
    preempted: tuple[int, ...] = ()

    @classmethod
    def from_json(cls, data: list[Any]) -> "Step":
        grants, preempted = data
        return cls(tuple((number, start, tokens, tuple(b)) for number, start, tokens, b in grants), tuple(preempted))


class Scheduler(Protocol):
    """What a drive needs of either side."""

    def add(self, offers: list[Offer]) -> None: ...
    def abort(self, number: int) -> None: ...
    def plan(self) -> Step: ...
    def answer(self) -> None: ...


class Ours:
    """`Instance` with the `vllm_v1` preset, its laws checked after every change."""

    def __init__(self, scenario: Scenario) -> None:
        self.instance = scenario.settings.instance()
        self._ends: dict[int, int] = {offer.id: offer.output for offer in scenario.offers}
        self._emitted = dict.fromkeys(self._ends, 0)
        self._flying: deque[Planned] = deque()
        self._now = 0

    def add(self, offers: list[Offer]) -> None:
        for offer in offers:
            refused = self.instance.submit(offer.spec, self._now)
            assert refused is None, refused
        self.instance.check()

    def abort(self, number: int) -> None:
        self.instance.abort(number)
        self.instance.check()

    def plan(self) -> Step:
        planned = self.instance.plan(self._now)
        self.instance.check()
        preempted = tuple(r.request for r in self.instance.take_records() if isinstance(r, Preempted))
        if planned is None:
            return Step((), preempted)
        self._flying.append(planned)
        grants = tuple((g.request, g.start, g.length, tuple(g.new_blocks)) for g in planned.plan.grants)
        return Step(grants, preempted)

    def answer(self) -> None:
        planned = self._flying.popleft()
        answers = []
        for grant in planned.plan.grants:
            self._emitted[grant.request] += grant.samples
            last = grant.samples and self._emitted[grant.request] >= self._ends[grant.request]
            answers.append(GrantResult(None, last=last))
        self._now += 1
        self.instance.complete(StepResult(planned.plan.id, tuple(answers), (), self._now - 1, self._now))
        self.instance.check()


class Theirs:
    """vLLM's scheduler behind `Peer`."""

    def __init__(self, peer: Peer, scenario: Scenario) -> None:
        self._peer = peer
        peer.ask("open", **asdict(scenario.settings))

    def add(self, offers: list[Offer]) -> None:
        # Arrival times there are never equal, and ours break ties by order of submission.
        rows = [{**asdict(offer), "arrival": offer.step + offer.id / 1e6} for offer in offers]
        self._peer.ask("add", requests=rows)

    def abort(self, number: int) -> None:
        self._peer.ask("abort", number=number)

    def plan(self) -> Step:
        answer = self._peer.ask("plan")
        return Step.from_json([answer["grants"], answer["preempted"]])

    def answer(self) -> None:
        self._peer.ask("answer")


def drive(scenario: Scenario, scheduler: Scheduler) -> Iterator[Step]:
    """Play ``scenario`` to its end, step by step.

    A step is answered before the next is planned; with ``ahead`` only once the next is planned.
    """
    waiting, flying = deque(scenario.offers), 0
    aborts: dict[int, list[int]] = {}
    for offer in scenario.offers:
        aborts.setdefault(offer.abort, []).append(offer.id)
    for number in range(STEPS):
        due = []
        while waiting and waiting[0].step <= number:
            due.append(waiting.popleft())
        scheduler.add(due)
        for request in aborts.get(number, ()):
            scheduler.abort(request)
        step = scheduler.plan()
        yield step
        flying += bool(step.grants)
        if flying and (not scenario.settings.ahead or flying == 2 or not step.grants):
            scheduler.answer()
            flying -= 1
        elif not flying and not waiting and not step.grants:
            return
    raise AssertionError(f"not over after {STEPS} steps")
