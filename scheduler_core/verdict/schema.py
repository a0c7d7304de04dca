"""The verdict as data: the same object behind the page, the API, the terminal and the report."""

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from scheduler_core.spec.base import Spec


class Decision(StrEnum):
    """The only three answers."""

    ACCEPT = "accept"
    TUNE = "tune"
    REJECT = "reject"


EXIT_CODES = {Decision.ACCEPT: 0, Decision.TUNE: 10, Decision.REJECT: 20}
EXIT_NOT_COMPARABLE = 30
SUBMIT = "headway submit next.yaml --wait"
"""How a next experiment is run, once its form is in a file."""


class Interval(Spec):
    """Relative change, candidate against baseline, with its bounds over pairs."""

    low: float
    high: float
    confidence: float


class Gate(Spec):
    """One declared gate and what the pairs say about it.

    ``second_opinion`` is the interval by a block bootstrap inside the runs; it never decides. ``change`` and
    ``interval`` are relative to the baseline (0.1 is 10 % more). ``label`` speaks of direction of
    benefit, ``state`` of the gate: ``missing`` means the evidence it needs is absent.
    """

    metric: str
    role: Literal["primary", "guard"]
    unit: str
    better: Literal["lower", "higher"]
    margin: float
    baseline: float | None
    candidate: float | None
    change: float | None
    interval: Interval | None
    second_opinion: Interval | None = None
    label: Literal["better", "worse", "same", "undecided", "missing"]
    state: Literal["passed", "failed", "undecided", "missing"]
    sentence: str


class LayerEffect(Spec):
    """One cell row of the layer x metric table: what moved a metric, and whether one layer alone can be credited."""

    layer: str
    metric: str
    change: float | None
    credited: bool
    sentence: str


class NextStep(Spec):
    """The next experiment worth running, as a filled-in form and as a command."""

    title: str
    because: str
    experiment: dict[str, Any] | None = None
    command: str = ""


class Finding(Spec):
    """A diagnosis: symptom, first judgement, what to try; ``evidence`` cites fields with figures.

    ``thresholds`` are the numbers that had to be passed, so that a reader can disagree with them.
    """

    rule: str
    problem: Literal["compute", "queueing", "handoff", "allocation", "unknown"]
    symptom: str
    judgement: str
    evidence: list[str]
    thresholds: list[str]
    next_step: NextStep


class Comparison(Spec):
    """One candidate arm against the baseline. ``decision`` is None exactly when not comparable."""

    baseline: str
    candidate: str
    comparable: bool
    obstacles: list[str]
    decision: Decision | None
    headline: str
    pairs: int
    requests_per_run: int
    plan_digest: str
    gates: list[Gate]
    effects: list[LayerEffect]
    why: list[str]
    costs: list[str] = Field(
        [], description="What a million valid tokens and requests that did not finish cost; empty without a price."
    )
    conditions: list[str]
    next_steps: list[NextStep]
    diagnosis: list[Finding] = []
    next_look: int | None = Field(
        None, description="Pairs of the next declared look, while it can still change this answer."
    )
    exit_code: int


class LoadPoint(Spec):
    """An arm at one load: means over its repeats; None where no repeat has the figure."""

    load: float
    attainment_share: float
    goodput_rps: float
    ttft_p95_ms: float | None


class ArmCapacity(Spec):
    """How much load an arm carries: the highest that meets the objectives at the stated attainment.

    ``resolved`` is ``within`` when a lower load met them and a higher one did not; else the capacity is only known to
    lie ``above`` the highest or ``below`` the lowest load. ``low`` and ``high`` are its interval over the repeats, by
    Student's t on its logarithm, where each repeat resolved it. ``knee`` is where the tail bends, if it does.
    """

    arm: str
    capacity: float | None
    low: float | None = None
    high: float | None = None
    resolved: Literal["within", "above", "below"]
    knee: float | None
    sentence: str
    curve: list[LoadPoint] = []


class SweepVerdict(Spec):
    """Arms over common loads. Without a candidate it is load sensitivity, and there is no decision."""

    schema_version: Literal["headway-sweep/2"] = "headway-sweep/2"
    baseline: str
    candidate: str | None
    unit: str
    loads: list[float]
    attainment: float
    repeats: int
    arms: list[ArmCapacity]
    decision: Decision | None
    headline: str
    obstacles: list[str]
    gates: list[Gate]
    conditions: list[str]
    next_steps: list[NextStep]
    exit_code: int


class ArmIsolation(Spec):
    """One arm: the tail of a tenant or tier with fewer and with more others, and the relative change over repeats."""

    arm: str
    fewer: float | None
    more: float | None
    shift: float | None
    interval: Interval | None
    sentence: str


class IsolationVerdict(Spec):
    """How much one tenant or tier feels of the others. Without a candidate there is no decision.

    ``of`` names it (``tenant a``), ``others`` are how many times over everybody else's requests were sent.
    """

    schema_version: Literal["headway-isolation/1"] = "headway-isolation/1"
    baseline: str
    candidate: str | None
    of: str
    metric: str
    others: list[int]
    repeats: int
    arms: list[ArmIsolation]
    decision: Decision | None
    headline: str
    obstacles: list[str]
    gates: list[Gate]
    conditions: list[str]
    next_steps: list[NextStep]
    exit_code: int


class Verdict(Spec):
    """All comparisons of an experiment, its load sweeps or its isolation; the exit code is its best candidate's."""

    schema_version: Literal["headway-verdict/1"] = "headway-verdict/1"
    experiment: str
    comparisons: list[Comparison]
    sweeps: list[SweepVerdict] = []
    isolations: list[IsolationVerdict] = []
    identical_outputs: str
    exit_code: int
