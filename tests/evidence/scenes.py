"""Small builders of record streams, times in ms, for tests that work figures out by hand."""

from collections.abc import Sequence
from typing import Any

from scheduler_core.evidence.lint import SOURCES
from scheduler_core.types.records import (
    Admitted,
    Arrived,
    Finished,
    Preempted,
    Record,
    RunFinished,
    RunStarted,
    Step,
)
from scheduler_core.types.time import NS_PER_MS, Ns

POOL = 100
LEVELS = {source: level for level, source in SOURCES.items()}


def ns(ms: float) -> Ns:
    return round(ms * NS_PER_MS)


class Scene:
    """Writes a consistent run: requests arrive, steps grant, and cursors, epochs and blocks follow by themselves."""

    def __init__(self, offered: int, *, source: str = "modelled", budget: int = 4096, pool: int = POOL) -> None:
        self.records: list[Record] = []
        self.budget = budget
        self.pool = pool
        self._step = 0
        self._prompt: dict[int, int] = {}
        self._emitted: dict[int, int] = {}
        self._epoch: dict[int, int] = {}
        self._next: dict[int, int] = {}
        self._resident: list[int] = []
        self.add(
            RunStarted(
                run="r", attempt=1, plan_digest="plan", policy_digest="policy", policy={"policy": "vllm_v1"},
                target={"modelled": {"noise": True}}, level=LEVELS[source], source=source, offered=offered,
                kv_blocks=pool, block_size=16, token_budget=budget,
            )
        )  # fmt: skip

    def add(self, record: Record) -> None:
        self.records.append(record)

    def arrive(self, request: int, at: float, prompt: int = 10, limit: int = 1000, **who: Any) -> None:
        who = {"tenant": "default", "tier": "default", **who}
        self.add(Arrived(ns(at), ns(at), request, prompt, limit, **who))
        self._prompt[request], self._emitted[request] = prompt, 0

    def admit(self, request: int, at: float, hit: int = 0) -> None:
        resumed = request in self._epoch
        self._epoch[request] = self._epoch.get(request, -1) + 1
        self._next[request] = hit
        self._resident.append(request)
        self.add(Admitted(ns(at), request, self._epoch[request], hit, resumed, self._step + 1))

    def preempt(self, request: int, at: float) -> None:
        self._resident.remove(request)
        self.add(Preempted(ns(at), request, self._epoch[request], "no_blocks", 1, self._next[request], self._step + 1))

    def step(
        self,
        begin: float,
        end: float,
        grants: Sequence[tuple[int, int] | tuple[int, int, str]],
        *,
        compute: tuple[float, float] | None = None,
        lanes: Sequence[tuple[str, float, float]] = (),
        stalled: Sequence[tuple[int, str]] = (),
        **kv: Any,
    ) -> Step:
        """One step over ``[begin, end)``; grants are (request, tokens[, phase]), sampling at the last known token."""
        self._step += 1
        rows = [self._grant(*grant) for grant in grants]
        from_, to = compute or (begin, end)
        counts = {"kv_used": 10, "kv_cached": 0, "waiting": 0, "paused": 0, **kv}
        step = Step(
            id=self._step, digest=f"d{self._step}", planned_ns=ns(begin), available_ns=ns(end), grants=rows,
            lanes=[("compute", "device", ns(from_), ns(to)), *((k, "host", ns(a), ns(b)) for k, a, b in lanes)],
            stalled=list(stalled), kv_free=self.pool - counts["kv_used"] - counts["kv_cached"],
            running=len(self._resident), budget=self.budget, **counts,
        )  # fmt: skip
        self.add(step)
        return step

    def finish(self, request: int, at: float, outcome: str = "finished", tokens: list[int] | None = None) -> None:
        if request in self._resident:
            self._resident.remove(request)
        self.add(Finished(ns(at), request, outcome, "decode", "length", self._emitted[request], tokens=tokens))

    def end(self, at: float, *, complete: bool = True) -> list[Record]:
        self.add(RunFinished(ns(at), complete, "done", self._step, 0))
        return self.records

    def _grant(self, request: int, tokens: int, phase: str | None = None) -> tuple[int, int, int, int, str, int, int]:
        start = self._next[request]
        known = self._prompt[request] + self._emitted[request]
        self._next[request] = start + tokens
        sampled = int(start + tokens == known)
        self._emitted[request] += sampled
        if phase is None:
            phase = "prefill" if start < self._prompt[request] else "decode"
        return (request, self._epoch[request], start, tokens, phase, sampled, 0)


def recomputed() -> list[Record]:
    """Tokens at 50, 60, 70; preempted at 75; the last two at 200 and 210 (five in all); arrival at 0."""
    scene = Scene(1)
    scene.arrive(0, 0)
    scene.admit(0, 0)
    scene.step(0, 50, [(0, 10)])
    scene.step(50, 60, [(0, 1)])
    scene.step(60, 70, [(0, 1)])
    scene.preempt(0, 75)
    scene.admit(0, 150)
    scene.step(150, 200, [(0, 13, "recompute")])
    scene.step(200, 210, [(0, 1)])
    scene.finish(0, 210)
    return scene.end(210)


def found_again() -> list[Record]:
    """One request is preempted after its prompt of 10 tokens, finds 8 of them again, computes 3, and ends at 30 ms."""
    scene = Scene(1)
    scene.arrive(0, 0)
    scene.admit(0, 0)
    scene.step(0, 10, [(0, 10)])
    scene.preempt(0, 10)
    scene.admit(0, 20, hit=8)
    scene.step(20, 30, [(0, 3, "recompute")])
    scene.finish(0, 30)
    return scene.end(30)
