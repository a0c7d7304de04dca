"""Experiments whose right answer is known, on the modelled target with its noise stream on."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scheduler_core.evidence.finalise import summarise
from scheduler_core.evidence.records.expand import expand
from scheduler_core.evidence.schema import RunSummary
from scheduler_core.policies.presets import Capacity, build_policy
from scheduler_core.policies.resolving import resolve
from scheduler_core.sched.recorded import RecordedInstance
from scheduler_core.sim.executor import SimulatedExecutor
from scheduler_core.sim.recorded import RecordedDriver
from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.parse import parse
from scheduler_core.spec.target import Affine, Profile
from scheduler_core.testing.builders import ListSink
from scheduler_core.types.arrival import PlannedRequest
from scheduler_core.types.records import Admitted, Finished, Record, RunStarted, Step
from scheduler_core.types.time import NS_PER_S
from scheduler_core.verdict.decide import decide
from scheduler_core.verdict.schema import Comparison
from scheduler_core.verdict.sequential import Further, further
from scheduler_core.workload.freeze import freeze

RESIDUAL_SHARE = 0.05
DRIFT_SHARE = 0.005
KV_BLOCKS = 512
PAIRS = 5
MOST_PAIRS = 20

Transform = Callable[[list[Record]], list[Record]]


@dataclass(frozen=True)
class Effect:
    """A baseline and a candidate that differ in one known way, and the decisions that are right about it."""

    name: str
    right: tuple[str, ...]
    goal: dict[str, Any]
    baseline: dict[str, Any] = field(default_factory=lambda: {"policy": "vllm_v1"})
    candidate: dict[str, Any] = field(default_factory=lambda: {"policy": "vllm_v1"})
    workload: dict[str, Any] = field(default_factory=dict)
    slower: float = 1.0
    shorter: float = 1.0
    transform: Transform | None = None
    names: str = ""
    drops: bool = False


def workload(changes: dict[str, Any]) -> dict[str, Any]:
    """Chat-like traffic at about 80 % of what the profile can serve."""
    return {
        "arrivals": {"poisson": {"rate_rps": 20}},
        "lengths": {
            "prompt": {"lognormal": {"mean": 100, "stdev": 100, "maximum": 700}},
            "output": {"lognormal": {"mean": 12, "stdev": 8, "maximum": 40}},
        },
        "requests": 120,
        "seed": 11,
        **changes,
    }


def profile(slower: float = 1.0) -> Profile:
    """A small device; ``slower`` multiplies every cost."""
    return Profile(
        name="bench", model="none", device="none", dtype="none",
        cost=Affine(
            base_ns=4e6 * slower, prefill_token_ns=2e5 * slower, decode_request_ns=5e5 * slower,
            context_token_ns=1e3 * slower,
        ),
        residual_share=RESIDUAL_SHARE, drift_share=DRIFT_SHARE, held_out_error_share=0.0, domain={},
        steps_measured=0, measured_on={},
    )  # fmt: skip


def experiment(effect: Effect, *, pairs: int = PAIRS, noise: bool = True) -> ExperimentSpec:
    """The effect as an experiment: baseline continuous batching, candidate as declared."""
    return parse(
        ExperimentSpec,
        {
            "name": effect.name,
            "workload": workload(effect.workload),
            "target": {"modelled": {"noise": noise}},
            "arms": {"baseline": effect.baseline, "candidate": effect.candidate},
            "repeats": pairs,
            "goal": effect.goal,
        },
    )


class Case:
    """An effect, frozen: the plan and the policies that all of its runs share."""

    def __init__(self, effect: Effect, *, pairs: int = PAIRS, noise: bool = True) -> None:
        self.effect = effect
        self.spec = experiment(effect, pairs=pairs, noise=noise)
        self.policies = {arm: resolve(policy) for arm, policy in self.spec.arms.items()}
        self.plan = freeze(self.spec.workload)

    def run(self, arm: str, repeat: int, seed: int) -> RunSummary:
        """One run of ``arm`` under noise ``seed``; the candidate gets what the effect changes beyond its policy."""
        changed = None if arm == self.spec.baseline else self.effect
        requests = self.plan.requests
        if changed is not None and changed.shorter < 1:
            requests = tuple(replace(r, output_tokens=max(1, int(r.output_tokens * changed.shorter))) for r in requests)
        records = self._play(arm, requests, profile(changed.slower if changed else 1.0), seed)
        if changed is not None and changed.transform is not None:
            records = changed.transform(list(expand(records)))
        workload = self.spec.workload
        return summarise(records, arm=arm, repeat=repeat, tiers=workload.tiers, warmup_share=workload.warmup_share)

    def _play(self, arm: str, requests: Sequence[PlannedRequest], device: Profile, seed: int) -> list[Record]:
        """Records of a run, steps of one make-up as one record each, as the product writes them of a modelled run."""
        policy, target = self.policies[arm], self.spec.target
        assert target.modelled is not None
        sink = ListSink()
        sink.write(
            RunStarted(
                run=f"{arm}-{seed}", attempt=1, plan_digest=self.plan.digest, policy_digest=policy.digest(),
                policy=policy.canonical(), target=target.canonical(), level="simulation", source="modelled",
                offered=len(requests), kv_blocks=KV_BLOCKS, block_size=policy.cache.block_size or 1,
                token_budget=policy.batch.token_budget or 0,
            )
        )  # fmt: skip
        RecordedDriver(
            instance=RecordedInstance(build_policy(policy, Capacity(kv_blocks=KV_BLOCKS, model_length=4096))),
            requests=requests,
            executor=SimulatedExecutor(profile=device, noise_seed=seed if target.modelled.noise else None),
            sink=sink,
            stop=lambda: False,
            prefix_block_size=self.plan.block_size,
        ).run()
        return sink.records


class Trials:
    """Trials of effects, each with runs of its own; effects of one baseline on one plan share its runs."""

    def __init__(self) -> None:
        self._baselines: dict[tuple[str, str, int], RunSummary] = {}

    def answer(self, case: Case, trial: int) -> Comparison:
        """One trial to its verdict by the product's own rule: further pairs only while a declared look can use them."""
        spec = case.spec
        found: list[RunSummary] = []
        more: Further | None = Further(spec.first_pairs(), frozenset(spec.arms))
        while more:
            for repeat in range(len(found) // 2, more.pairs):
                seed = (trial * MOST_PAIRS + repeat) * 2
                found += [self._baseline(case, repeat, seed), case.run("candidate", repeat, seed + 1)]
            verdict = decide(spec, found)
            more = further(spec.goal.looks, more.pairs, verdict)
        return verdict.comparisons[0]

    def _baseline(self, case: Case, repeat: int, seed: int) -> RunSummary:
        arm = case.spec.baseline
        key = case.plan.digest, case.policies[arm].digest(), seed
        if key not in self._baselines:
            self._baselines[key] = case.run(arm, repeat, seed)
        return self._baselines[key]


def stalled(records: list[Record], share: float = 0.05, stall_s: float = 2.0) -> list[Record]:
    """The last token of ``share`` of the requests comes ``stall_s`` late; in between they are resident and stalled."""
    ends = [record for record in records if isinstance(record, Finished) and record.output_tokens > 1]
    return _Stall({end.request: end for end in ends[:: max(1, round(1 / share))]}, round(stall_s * NS_PER_S)).apply(
        records
    )


class _Stall:
    """Moves the last grant of each victim to the first step that is planned late enough."""

    def __init__(self, victims: dict[int, Finished], stall_ns: int) -> None:
        self._victims = victims
        self._stall_ns = stall_ns
        self._waiting: dict[int, Any] = {}
        self._moved: list[Record] = []
        self._reached = 0

    def apply(self, records: list[Record]) -> list[Record]:
        last = {
            row[0]: step.id
            for step in records
            if isinstance(step, Step)
            for row in step.grants
            if row[0] in self._victims
        }
        *body, end = records
        template = next(record for record in body if isinstance(record, Step))
        for record in body:
            if isinstance(record, Step):
                self._step(record, last)
            elif not (isinstance(record, Finished) and record.request in self._victims):
                if isinstance(record, Admitted):
                    self._quiet(template, record.at_ns)
                self._moved.append(record)
        if self._waiting:
            begin = self._reached + self._stall_ns
            self._quiet(template, begin)
            self._step(
                replace(
                    template,
                    planned_ns=begin,
                    available_ns=begin + 5_000_000,
                    grants=[],
                    lanes=[("compute", "device", begin, begin + 5_000_000)],
                ),
                {},
            )
        steps = itertools.count(1)
        return [replace(r, id=next(steps)) if isinstance(r, Step) else r for r in (*self._moved, end)]

    def _step(self, step: Step, last: dict[int, int]) -> None:
        self._quiet(step, step.planned_ns)
        due = [r for r in self._waiting if self._victims[r].at_ns + self._stall_ns <= step.planned_ns]
        taken = [row for row in step.grants if last.get(row[0]) == step.id]
        rows = [row for row in step.grants if row not in taken] + [self._waiting.pop(request) for request in due]
        held = [(request, "held_by_policy") for request in (*self._waiting, *(row[0] for row in taken))]
        self._waiting |= {row[0]: row for row in taken}
        self._moved.append(replace(step, grants=rows, stalled=[*step.stalled, *held], budget=0))
        self._moved += [replace(self._victims[request], at_ns=step.available_ns) for request in due]
        self._reached = step.available_ns

    def _quiet(self, template: Step, until_ns: int) -> None:
        """A step that grants nothing, where the device would be idle while a victim waits."""
        if self._waiting and until_ns > self._reached:
            lanes = [("compute", "device", self._reached, until_ns)]
            held = [(request, "held_by_policy") for request in self._waiting]
            self._moved.append(
                replace(template, planned_ns=self._reached, available_ns=until_ns, grants=[], lanes=lanes, stalled=held)
            )
            self._reached = until_ns


def dropped(records: list[Record], share: float = 0.2) -> list[Record]:
    """The slowest ``share`` of the requests fail at their end, so that only quick ones count as finished."""
    arrivals = {r.request: r.at_ns for r in records if r.kind == "arrived"}  # type: ignore[union-attr]
    ends = [record for record in records if isinstance(record, Finished)]
    ends.sort(key=lambda record: arrivals[record.request] - record.at_ns)
    slow = {record.request for record in ends[: int(share * len(ends))]}
    return [
        replace(record, outcome="failed", reason="dropped")
        if isinstance(record, Finished) and record.request in slow
        else record
        for record in records
    ]


def warm(records: list[Record]) -> list[Record]:
    """The prefix cache held 64 blocks before the first step."""
    first = next(record for record in records if isinstance(record, Step))
    primed = replace(first, kv_cached=first.kv_cached + 64, kv_free=first.kv_free - 64)
    return [primed if record is first else record for record in records]


LOOKS = [PAIRS, 10, MOST_PAIRS]  # a small effect needs more pairs; the declared rule adds them only while they can help
SPEED = {"primary": "e2e_p50_ms", "guard": {"tpot_p50_ms": 0.05}}
TTFT = {"primary": "ttft_p95_ms", "better_by": 0.10, "guard": {"tpot_p95_ms": 0.05, "goodput_rps": -0.02}}
BUSY = {"arrivals": {"poisson": {"rate_rps": 30}}}
TIERS = {**BUSY, "tiers": {"chat": {"share": 0.75}, "batch": {"share": 0.25, "priority": 10}}}
SMALL = {"policy": "vllm_v1", "batch": {"size": 4}}
PRIORITY = {**SMALL, "order": {"by": "priority"}}

EFFECTS: tuple[Effect, ...] = (
    Effect("step 3 percent longer", ("reject",), {"primary": "tpot_p50_ms", "better_by": 0.01, "looks": LOOKS},
           slower=1.03),
    Effect("step 10 percent longer", ("reject",), {**SPEED, "better_by": 0.05}, slower=1.10),
    Effect("stall of 2 s", ("tune", "reject"), {**SPEED, "better_by": 0.05}, slower=0.8, transform=stalled,
           names="most often caused by stalled: held by policy"),
    Effect("one tier starved", ("tune", "reject"), {"primary": "ttft_p50_ms", "better_by": 0.05, "guard": {}},
           baseline=SMALL, candidate=PRIORITY, workload=TIERS, names="tier batch"),
    Effect("slow requests dropped", ("reject",), TTFT, slower=0.8, transform=dropped, names="completion",
           drops=True),
    Effect("queue limit drops requests", ("tune", "reject"), TTFT, workload=BUSY,
           candidate={"policy": "vllm_v1", "batch": {"queue_limit": 1}}, drops=True),
    Effect("warm against cold cache", ("not comparable",), TTFT, transform=warm, names="prefix cache held"),
    Effect("early-stopping outputs", ("not comparable",), TTFT, shorter=0.7, names="output lengths differ"),
)  # fmt: skip
