"""The methodological rules R1 to R40, each with the check that holds a run or a verdict to it.

One registry: docs/evidence.md shows it as a table, and a test breaks every rule and sees that very rule speak.
"""

from dataclasses import dataclass
from typing import Literal

Where = Literal["audit", "linter", "comparability", "gates", "decision", "diagnosis", "attribution", "conditions",
                "goal", "plan", "sweep", "registry", "storage"]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """``where`` enforces it, and ``check`` says what happens to what breaks it."""

    id: str
    says: str
    where: Where
    check: str


_RULES = (
    Rule("R1", "the workload is fixed: one arrival plan, one window, one state of the cache", "comparability",
         "no decision; names both digests, counts or block numbers"),
    Rule("R2", "a reference first", "comparability", "no decision without a baseline that completed and served"),
    Rule("R3", "input and output explain, they are no goal", "goal", "no such figure can be a gate"),
    Rule("R4", "each instant of a request has one class", "audit", "`R4 additivity`: parts add up to elapsed"),
    Rule("R5", "no load, queue or handoff inside TPOT", "linter",
         "`R5 TPOT is gaps alone`: no quantile above that of the longest gap"),
    Rule("R6", "a longer queue is no slower device", "attribution",
         "queue wait is told apart from compute, which is named where it stayed equal"),
    Rule("R7", "stage figures only on the same workload", "comparability",
         "without comparability there is no effect, reason or diagnosis"),
    Rule("R8", "transfer and recompute counted once", "audit", "`R8 recompute once`, `handoff adds up`"),
    Rule("R9", "exposed time is kept apart from elapsed", "linter",
         "`R9 exposed within elapsed`: 0 <= exposed <= communication"),
    Rule("R10", "cold and warm never averaged together", "linter",
         "`R10 cold apart`: no more samples than warm requests"),
    Rule("R11", "overlap is never summed into elapsed", "linter",
         "`R11 overlap is not elapsed`: parts of time are at most elapsed"),
    Rule("R12", "overlap counts only off the critical path", "diagnosis", "`R12`: more overlap or drafts, no gain"),
    Rule("R13", "parallelism that only waits is no gain", "diagnosis", "`R13`: more at once, no more tokens"),
    Rule("R14", "a gain needs its cause", "diagnosis", "`R14`: gain not explained by exposed time"),
    Rule("R15", "credit goes to one layer", "attribution", "credited only where one layer alone changed"),
    Rule("R16", "utilisation alone decides nothing", "goal", "no such figure can be a gate"),
    Rule("R17", "layers in order, each from what was accepted", "plan", "a stage without the one before is refused"),
    Rule("R18", "seven figures in the final table", "attribution", "always shown, absent ones with their reason"),
    Rule("R19", "each value has its source", "linter", "`R19 source`: one of the known sources"),
    Rule("R20", "accept, tune or reject", "decision", "no fourth answer exists; not comparable is a field of its own"),
    Rule("R21", "one form of record for both arms", "comparability",
         "no decision; names figures that only one arm has"),
    Rule("R22", "extensions add and never redefine", "registry", "a figure defined twice is refused when loaded"),
    Rule("R23", "a single instance first", "decision",
         "no accept of what several instances gain without a complete record of one on the same plan"),
    Rule("R24", "compute, queueing, handoff, allocation, unknown", "diagnosis", "a finding has one of these classes"),
    Rule("R25", "only safe overlap", "audit", "`R25 ordering`: nothing before its inputs"),
    Rule("R26", "missing is not zero", "audit", "`R26 typed absence`: a value or a reason, never both or neither"),
    Rule("R27", "a load sweep of one arm is no gain", "sweep", "there is no decision"),
    Rule("R28", "one variable a candidate", "comparability", "no decision where the targets differ, too"),
    Rule("R29", "the evidence level on every record", "linter", "`R29 level`: level and source belong together"),
    Rule("R30", "the parameter took effect", "comparability", "no decision where not one decision of a step differed"),
    Rule("R31", "hits are counted, never inferred", "linter", "`R31 hits counted`: a share needs its look-ups"),
    Rule("R32", "failures keep their reason", "linter",
         "`R32 reason of every failure`; exports name the way to retest"),
    Rule("R33", "results append", "storage",
         "a retry is a new attempt; a second, different write and writes of an old attempt are refused"),
    Rule("R34", "repeated, warmed, samples kept", "decision", "fewer than five pairs never give more than tune"),
    Rule("R35", "no tail from few samples", "linter", "`R35 enough samples`: p95 from 20, p99 from 100"),
    Rule("R36", "unsupported or unstable is tune", "decision", "a gate without evidence asks for it"),
    Rule("R37", "a conclusion names its conditions", "comparability",
         "machine, target, traffic and pairs are said; no decision over pairs made under different ones"),
    Rule("R38", "runnability before latency before throughput", "decision",
         "a broken guard of equal or higher rank rejects, a lower one asks for tuning"),
    Rule("R39", "equal quality on both sides", "comparability",
         "no decision where lengths, tokens or declared quality differ"),
    Rule("R40", "equal hardware and level", "comparability", "no decision; names what differs"),
)  # fmt: skip
RULES: dict[str, Rule] = {rule.id: rule for rule in _RULES}


def as_markdown() -> str:
    """The registry as the table of docs/evidence.md."""
    rows = [f"| {rule.id} | {rule.says} | {rule.where} | {rule.check} |" for rule in RULES.values()]
    return "\n".join(["| Rule | Says | Held by | Whoever breaks it |", "|---|---|---|---|", *rows]) + "\n"
