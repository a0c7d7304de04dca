"""The guided plan (R17): one layer after another, each stage starting from what the one before accepted.

Step selection, then cache, then batch, then pools and routing where the target has them, and last the fixed workload
with the outcome against the reference. Each stage is an ordinary experiment and gives an ordinary verdict.
"""

import copy
from dataclasses import dataclass
from typing import Any

from scheduler_core.spec.experiment import ExperimentSpec
from scheduler_core.spec.parse import parse
from scheduler_core.spec.policy import PolicySpec
from scheduler_core.types.errors import InputError, Problem
from scheduler_core.verdict.schema import Comparison, Decision, Verdict

REFERENCE: dict[str, Any] = {"policy": "static", "batch": {"size": 8}}


@dataclass(frozen=True, slots=True)
class Stage:
    """``variants`` are arms by name: dotted parameters to set on the configuration accepted so far."""

    name: str
    question: str
    variants: dict[str, dict[str, Any]]


STAGES: tuple[Stage, ...] = (
    Stage("step selection", "who shares a step, and who goes first", {
        "continuous": {"policy": "vllm_v1"},
        "continuous by priority": {"policy": "vllm_v1", "order.by": "priority"},
    }),
    Stage("cache", "what is kept, and when a request is let in", {
        "no prefix cache": {"cache.prefix": "none"},
        "room for the limit": {"cache.admit": "limit"},
        "watermark 5 percent": {"cache.watermark": 0.05},
    }),
    Stage("batch", "how much prefill a step may hold beside decode", {
        "budget 2048": {"batch.token_budget": 2048},
        "budget 512": {"batch.token_budget": 512},
        "budget 256": {"batch.token_budget": 256},
    }),
    Stage("fixed workload", "the outcome against the reference", {}),
)  # fmt: skip


def stage_experiment(asked: ExperimentSpec, number: int, accepted: PolicySpec | None) -> ExperimentSpec:
    """The experiment of stage ``number`` (from 0): ``accepted`` against its variants, on the workload of ``asked``.

    The first stage starts from the reference; the last compares the outcome with it.

    Raises:
        InputError: there is no such stage, or a later one is asked for without an accepted configuration.
    """
    if not 0 <= number < len(STAGES):
        raise InputError([Problem("stage", f"there are stages 0 to {len(STAGES) - 1}, not {number}")])
    if number and accepted is None:
        raise InputError([Problem("stage", f"{STAGES[number].name} starts from what the stage before accepted")])
    stage = STAGES[number]
    reference = parse(PolicySpec, REFERENCE)
    base = accepted or reference
    if number == len(STAGES) - 1:
        arms = {"baseline": reference.canonical(), "outcome": base.canonical()}
    else:
        arms = {"baseline": base.canonical()}
        arms |= {name: turned for name, change in stage.variants.items() if (turned := _set(base, change)) is not None}
    form = {**asked.canonical(), "name": f"{asked.name[:40]} {number + 1} {stage.name}", "arms": arms}
    return parse(ExperimentSpec, form)


def outcome(spec: ExperimentSpec, verdict: Verdict) -> PolicySpec:
    """What the next stage starts from: the accepted arm that gained most, else the baseline."""
    accepted = [found for found in verdict.comparisons if found.decision is Decision.ACCEPT]
    if not accepted:
        return spec.arms[spec.baseline]
    return spec.arms[max(accepted, key=_gain).candidate]


def stage_report(number: int, spec: ExperimentSpec, verdict: Verdict) -> list[str]:
    """Sentences that a stage adds to the plan's one report."""
    stage = STAGES[number]
    lines = [f"{number + 1}. {stage.name}: {stage.question}"]
    lines += [f"{found.candidate}: {found.headline}" for found in verdict.comparisons]
    chosen = outcome(spec, verdict)
    kept = next(name for name, policy in spec.arms.items() if policy == chosen)
    return [*lines, f"goes on with {kept}"]


def _gain(found: Comparison) -> float:
    primary = found.gates[0]
    change = primary.change or 0.0
    return -change if primary.better == "lower" else change


def _set(base: PolicySpec, change: dict[str, Any]) -> dict[str, Any] | None:
    """``base`` with dotted parameters set; None when that changes nothing."""
    form = copy.deepcopy(base.canonical())
    if "policy" in change and change["policy"] != form["policy"]:
        form = {"policy": change["policy"]}
    for name, value in change.items():
        section, _, key = name.partition(".")
        if key:
            form.setdefault(section, {})[key] = value
    turned = parse(PolicySpec, form)
    return None if turned == base else turned.canonical()
