"""The mock's tokens from one modelled instance that all answers share, in real time.

A module of its own: what it imports takes longer than all else of a mock, and most mocks follow a script.
"""

import asyncio
import hashlib
import time

from gpu_runner.server.mock.behaviour import Scheduled
from gpu_runner.server.mock.stats import Stats
from gpu_runner.server.mock.stream import Answer
from scheduler_core.policies.presets import Capacity, build_instance
from scheduler_core.request.spec import RequestSpec
from scheduler_core.sched.plan import Planned
from scheduler_core.sim.cost import StepCost
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.intervals import COMPUTE, DEVICE, Lane
from scheduler_core.types.plan import GrantResult, StepResult
from scheduler_core.types.records import Admitted, Preempted
from scheduler_core.types.shape import shape_of
from scheduler_core.types.time import NS_PER_S


class ScheduledEngine:
    """One modelled instance in real time: each planned step takes as long as its cost model says."""

    def __init__(self, spec: Scheduled, stats: Stats) -> None:
        capacity = Capacity(kv_blocks=spec.kv_blocks, model_length=spec.profile.model_length)
        self._stats = stats
        self._instance = build_instance(spec.policy, capacity)
        self._cost = StepCost(spec.profile, spec.noise_seed)
        self._answers: dict[int, Answer] = {}
        self._next_id = 0
        self._ids: dict[int, int] = {}
        self._stepping = False
        stats.kv_blocks = spec.kv_blocks
        stats.block_size = spec.policy.cache.block_size or 16

    def submit(self, answer: Answer) -> None:
        index, self._next_id = self._next_id, self._next_id + 1
        question = answer.question
        size = self._stats.block_size
        planned = PlannedRequest(
            index, 0, len(question.prompt), question.max_tokens, question.max_tokens, seed=index,
            prefix_blocks=_chained_blocks(question.prompt, size),
        )  # fmt: skip
        now = time.monotonic_ns()
        self._answers[index], self._ids[id(answer)] = answer, index
        spec = RequestSpec.from_planned(planned, arrival_ns=now, prefix_block_size=size)
        refused = self._instance.submit(spec, now)
        if refused is not None:
            answer.exchange.answer(400, f'{{"error":{{"message":"{refused.reason}"}}}}'.encode())
            answer._end("error")
            return
        self._stats.waiting += 1
        self._wake()

    def leave(self, answer: Answer) -> None:
        index = self._ids.pop(id(answer), None)
        if index is not None:
            self._answers.pop(index, None)
            self._instance.abort(index)
            self._occupy()

    def reset_cache(self) -> None:
        self._instance.reset_cache(time.monotonic_ns())

    def _wake(self) -> None:
        if not self._stepping:
            self._stepping = True
            asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        planned = self._instance.plan(time.monotonic_ns())
        self._count_decisions()
        self._occupy()
        if planned is None:
            self._stepping = False
            return
        loop = asyncio.get_running_loop()
        took_s = self._cost.step_ns(shape_of(planned.plan), planned.plan.id) / NS_PER_S
        loop.call_at(loop.time() + took_s, self._complete, planned)

    def _complete(self, planned: Planned) -> None:
        now = time.monotonic_ns()
        answers = tuple(self._result(grant.request, samples=grant.samples) for grant in planned.plan.grants)
        lanes = (Lane(COMPUTE, DEVICE, planned.planned_ns, now),)
        done = self._instance.complete(StepResult(planned.plan.id, answers, lanes, planned.planned_ns, now))
        for _, request in done.emitted:
            answer = self._answers.get(request)
            if answer is not None:
                answer.tokens(1)
        self._step()

    def _result(self, request: int, *, samples: bool) -> GrantResult:
        answer = self._answers.get(request)
        left = answer.question.max_tokens - answer.emitted if answer is not None else 0
        return GrantResult(None, last=samples and left <= 1)

    def _count_decisions(self) -> None:
        for record in self._instance.take_records():
            if isinstance(record, Admitted) and not record.resumed:
                answer = self._answers.get(record.request)
                if answer is not None:
                    answer.cached_tokens = record.hit_tokens
                    self._stats.looked_up(len(answer.question.prompt), record.hit_tokens)
                    self._stats.queued(answer)
            elif isinstance(record, Preempted):
                self._stats.preemptions += 1

    def _occupy(self) -> None:
        now = self._instance.occupancy()
        self._stats.waiting, self._stats.running = now.waiting, now.running
        self._stats.kv_used, self._stats.kv_cached = now.kv_used, now.kv_cached


def _chained_blocks(prompt: tuple[int, ...], size: int) -> tuple[int, ...]:
    """An identity for each whole block of the prompt, equal exactly where all tokens up to its end are."""
    digest = hashlib.blake2b(digest_size=7)
    ids = []
    for begin in range(0, len(prompt) - size + 1, size):
        digest.update(repr(prompt[begin : begin + size]).encode())
        ids.append(int.from_bytes(digest.digest(), "big"))
    return tuple(ids)
