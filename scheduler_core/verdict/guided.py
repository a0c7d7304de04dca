"""The guided plan (R17): one layer after another, each stage starting from what the one before accepted.

Step selection, then cache and pausing, then chunked prefill with pools and the handoff budget, then routing, and last
the fixed workload with the outcome against the reference. Each stage is an ordinary experiment and gives an ordinary
verdict; a stage none of whose variants this target or policy can take is left out, and the report says so.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.parse import parse
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.spec.studies import GuidedSpec
from scheduler_core.spec.variants import turned
from scheduler_core.types.errors import InputError, Problem
from scheduler_core.verdict.schema import Comparison, Decision, Verdict
from scheduler_core.verdict.single_instance import SINGLE, with_single_instance

Allows = Callable[[PolicySpec], bool]


@dataclass(frozen=True, slots=True)
class Stage:
    """``variants`` are arms by name: dotted parameters to set on the configuration accepted so far.

    ``instances`` are the fewest that a target must have for the question to make sense.
    """

    name: str
    question: str
    variants: dict[str, dict[str, Any]]
    instances: int = 1


HOST_BLOCKS = 512  # of the pool that swapping needs, where the plan's start names none
FIRST_GROUP = "the target's first group"  # stands for its name, which only the target knows

STAGES: tuple[Stage, ...] = (
    Stage("step selection", "who shares a step, and who goes first", {
        "continuous": {"policy": "vllm_v1"},
        "continuous by priority": {"policy": "vllm_v1", "order.by": "priority"},
    }),
    Stage("cache", "what is kept, when a request is let in, and what a pause costs", {
        "no prefix cache": {"cache.prefix": "none"},
        "radix tree": {"cache.prefix": "radix"},
        "room for the limit": {"cache.admit": "limit"},
        "watermark 5 percent": {"cache.watermark": 0.05},
        "pause by swapping": {"cache.preemption": "swap", "cache.host_blocks": HOST_BLOCKS},
        "pause by keeping": {"cache.preemption": "keep"},
    }),
    Stage("batch and pools", "how much prefill a step may hold beside decode, and whether to separate them", {
        "budget 2048": {"batch.token_budget": 2048},
        "budget 512": {"batch.token_budget": 512},
        "budget 256": {"batch.token_budget": 256},
        "separated pools": {"pools.layout": "split", "pools.prefill": FIRST_GROUP},
        "separated pools within 50 ms": {
            "pools.layout": "split", "pools.prefill": FIRST_GROUP, "pools.handoff_budget_ms": 50,
        },
    }),
    Stage("routing", "which instance serves which request", {
        "least loaded": {"pools.route": "least_loaded"},
        "where the prefix is": {"pools.route": "prefix"},
        "soonest first token": {"pools.route": "first_token"},
    }, instances=2),
    Stage("fixed workload", "the outcome against the reference", {}),
)  # fmt: skip
LAST = len(STAGES) - 1


@dataclass(frozen=True, slots=True)
class StageResult:
    """A stage that was decided: its number from 0, what was compared, and the answer."""

    number: int
    spec: ExperimentSpec
    verdict: Verdict


def next_stage(
    asked: GuidedSpec, after: int, accepted: PolicySpec | None, *, allows: Allows
) -> tuple[int, ExperimentSpec]:
    """Number and experiment of the first stage beyond ``after`` (-1 before the first) that has something to try.

    ``allows`` tells whether a policy can be played on the target.

    Raises:
        InputError: ``after`` is the last stage, or no stage has anything to try.
    """
    for number in range(after + 1, len(STAGES)):
        spec = stage_experiment(asked, number, accepted or asked.start, allows=allows)
        if len(spec.arms) > 1:
            return number, spec
    raise InputError([Problem("stage", f"nothing is left to try after stage {after + 1} of {len(STAGES)}")])


def stage_experiment(
    asked: GuidedSpec, number: int, accepted: PolicySpec | None, *, allows: Allows = lambda policy: True
) -> ExperimentSpec:
    """The experiment of stage ``number`` (from 0): ``accepted`` against those of its variants that differ from it.

    The first stage starts from the reference; the last compares the outcome with it.

    Raises:
        InputError: there is no such stage, or a later one is asked for without an accepted configuration.
    """
    if not 0 <= number < len(STAGES):
        raise InputError([Problem("stage", f"there are stages 0 to {LAST}, not {number}")])
    if number and accepted is None:
        raise InputError([Problem("stage", f"{STAGES[number].name} starts from what the stage before accepted")])
    base = accepted or asked.start
    arms: dict[str, Any] = {"baseline": base.canonical()}
    if number < LAST:
        for name, policy in _variants(asked, STAGES[number], base).items():
            if policy != base and allows(policy):
                arms[name] = policy.canonical()
    elif base != asked.start:
        arms = {"baseline": asked.start.canonical(), "outcome": base.canonical()}
    form = asked.canonical()
    del form["start"]
    name = f"{asked.name} {number + 1} {STAGES[number].name}"[:64]
    spec = parse(ExperimentSpec, {**form, "name": name, "arms": arms, "baseline": "baseline"})
    return parse(ExperimentSpec, with_single_instance(spec)) if len(arms) > 1 else spec


def _variants(asked: GuidedSpec, stage: Stage, base: PolicySpec) -> dict[str, PolicySpec]:
    """The stage's variants of ``base``; another preset keeps the layout, which is the target's and not the preset's."""
    topology = asked.target.topology
    if (1 if topology is None else topology.instances) < stage.instances:
        return {}
    layout = base.pools.layout
    kept = {} if layout is None else {"pools.layout": layout}
    groups = list(topology.groups) if topology is not None else []
    found = {}
    for name, change in stage.variants.items():
        if FIRST_GROUP in change.values():
            if len(groups) < 2:
                continue
            change = {key: [groups[0]] if value == FIRST_GROUP else value for key, value in change.items()}
        found[name] = turned(base, {**kept, **change} if "policy" in change else change)
    return found


def outcome(spec: ExperimentSpec, verdict: Verdict) -> PolicySpec:
    """What the next stage starts from: the accepted arm that gained most, else the baseline."""
    return spec.arms[chosen_arm(spec, verdict)]


def chosen_arm(spec: ExperimentSpec, verdict: Verdict) -> str:
    """Name of the arm that `outcome` takes."""
    accepted = [
        found
        for found in verdict.comparisons
        if found.decision is Decision.ACCEPT and found.candidate != SINGLE  # a record for the others, no proposal
    ]
    return max(accepted, key=_gain).candidate if accepted else spec.baseline


def stage_report(result: StageResult) -> list[str]:
    """Sentences that a stage adds to the plan's one report."""
    stage = STAGES[result.number]
    lines = [f"{result.number + 1}. {stage.name}: {stage.question}"]
    lines += [f"{found.candidate}: {found.headline}" for found in result.verdict.comparisons]
    if result.number == LAST:
        return lines
    return [*lines, f"goes on with {chosen_arm(result.spec, result.verdict)}"]


def guided_parts(results: Sequence[StageResult]) -> list[list[str]]:
    """The plan's one report so far, stage by stage; stages that were left out are said to be."""
    done = {result.number: result for result in results}
    return [
        stage_report(done[number])
        if number in done
        else [f"{number + 1}. {STAGES[number].name}: left out, nothing in it can be tried here"]
        for number in range(1 + max(done, default=-1))
    ]


def guided_report(results: Sequence[StageResult]) -> list[str]:
    """`guided_parts` as lines."""
    return list(chain.from_iterable(guided_parts(results)))


def _gain(found: Comparison) -> float:
    primary = found.gates[0]
    change = primary.change or 0.0
    return -change if primary.better == "lower" else change
