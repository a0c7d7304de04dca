"""The driver's loop for long simulations with full evidence: work per event and step, not per token."""

from dataclasses import dataclass, field

from scheduler_core.drive.driver import Driver
from scheduler_core.drive.evidence import Evidence
from scheduler_core.sched.commit import STOPPED
from scheduler_core.sched.plan import FusedStep
from scheduler_core.sched.recorded import MakeUp, RecordedInstance
from scheduler_core.sim.ends import EndTimes
from scheduler_core.sim.executor import SimulatedExecutor
from scheduler_core.sim.lanes import Placed
from scheduler_core.sim.step_log import StepLog, rows_of
from scheduler_core.types.time import NEVER, Ns


@dataclass(kw_only=True)
class RecordedDriver(Driver):
    """As `Driver` with one step in flight, on a simulated executor without overlap, with `Steps` for `Step` records.

    `scheduler_core.evidence.records.expand` makes of its records those of a `Driver`, without digests of plans.
    """

    instance: RecordedInstance
    executor: SimulatedExecutor
    _log: StepLog = field(init=False)
    _last_tokens: EndTimes = field(init=False, default_factory=EndTimes)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._log = StepLog(self.sink, self.instance.policy.limits.token_budget)
        self._evidence = Evidence(self._log)

    def _launch(self, now_ns: Ns) -> bool:
        """Plan a step and play it, and the same again as long as nothing can change it."""
        step = self.instance.plan_fused(now_ns)
        self._write_all(self.instance.take_records())
        if step is None:
            return False
        made = self.instance.make_up(step)
        placed = self.executor.place(step.shape(), step.id, (step.copied_out, step.copied_in))
        if self._play(step, made, placed) and step.may_repeat:
            self._repeat(step)
        return True

    def _play(self, step: FusedStep, made: MakeUp, placed: Placed) -> bool:
        """Let come what comes while the step runs, and complete it; true when nothing came and nobody ended."""
        instance, begin, end = self.instance, self.executor.now_ns(), placed.available_ns
        instance.during(step)
        quiet = True
        while (due := self._agenda.next_ns()) is not None and due <= end:
            self.executor.wait(due)
            self._deliver(due)
            quiet = False
        self.executor.wait(end)
        cut = instance.take_cut_off()
        self._log.step(step, made.without(cut), placed, begin, rows_of(step, instance.live, cut))
        joined, over = instance.complete_fused(step, self._ends(step))
        self._count_step()
        for _, ended in over:
            self._write_ended(ended, end)
        for live in joined:
            self._last_tokens.schedule(live, self.executor.length(live.id) - live.emitted)
        return quiet and not over

    def _ends(self, step: FusedStep) -> dict[int, str]:
        """Who emits the last token in a step, and why it is the last."""
        instance, tick = self.instance, self.instance.cohort.tick + 1
        ends: dict[int, str] = {}
        if step.decoders and tick >= self._last_tokens.next_tick:
            ends = {member.id: reason for member, reason in self._last_tokens.take(tick)}
        for grant in step.grants:
            live = instance.live.get(grant.request)
            if live is not None and grant.samples and live.emitted + 1 >= self.executor.length(live.id):
                ends[live.id] = STOPPED
        return ends

    def _repeat(self, step: FusedStep) -> None:
        """Play a step that was the cohort's alone again, until an event comes, one of them ends, or a block is wanting.

        What comes with a step, or in its middle, is for `_play`.
        """
        instance, executor, ends = self.instance, self.executor, self._last_tokens
        cohort, number, decoders = instance.cohort, step.id, step.decoders
        due_ns, now = self._agenda.next_ns() or NEVER, executor.now_ns()
        wake_ns = instance.next_wakeup(now) or NEVER
        while now < min(due_ns, wake_ns) and not self.stop() and instance.repeat():
            number += 1
            end = now + executor.again_ns(decoders, cohort.context_tokens, number)
            if due_ns <= end or cohort.tick + 1 >= ends.next_tick:
                step = FusedStep(number, (), decoders, cohort.context_tokens, may_repeat=True)
                self._play(step, instance.make_up(step), executor.place(step.shape(), number))
                return
            executor.wait(end)
            now = end
            self._log.again(end, instance.blocks)
            instance.complete_repeat()
            self._count_step()

    def _count_step(self) -> None:
        self._steps += 1
        if self._steps % self.law_interval == 0:
            self._check()
