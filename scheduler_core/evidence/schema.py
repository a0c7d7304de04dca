"""The summary of a run: what the database keeps, the API returns and a verdict reads."""

from enum import StrEnum
from typing import Any, Literal

from scheduler_core.evidence.prediction import AgainstModel, Predicted
from scheduler_core.spec.base import Spec

NOISE = "noise"  # key of a fingerprint: whether the modelled target had any noise to add
NOTES = "notes"  # key of a fingerprint that holds sentences about the figures, no property of the machine


class Absence(StrEnum):
    """Why a value is not there. Zero is a measurement; nothing may read an absence as zero."""

    NOT_MEASURED = "not_measured"
    NOT_APPLICABLE = "not_applicable"
    UNSUPPORTED = "unsupported"
    FAILED = "failed"
    INSUFFICIENT_SAMPLES = "insufficient_samples"


class Figure(Spec):
    """A metric's value, or the reason for its absence; ``n`` raw samples stand behind it.

    ``value`` is None exactly when ``absence`` is set. An infinite censored quantile is ``None`` with
    ``absence=failed`` and a note, never a float infinity.
    """

    value: float | None
    unit: str
    n: int | None = None
    absence: Absence | None = None
    note: str = ""


class Violation(Spec):
    """A broken rule: which, in which record, with the numbers."""

    rule: str
    where: str
    message: str


class AuditReport(Spec):
    """Result of replaying the records independently; a run that failed it cannot enter a verdict."""

    passed: bool
    checks: dict[str, int]
    violations: list[Violation] = []


class TierSummary(Spec):
    """One tier's requests in the measured window: how many met each objective and all of them.

    ``by_prompt_tokens`` maps a range of prompt lengths to (requests that met all, requests offered).
    """

    offered: int
    finished: int
    met: int
    attainment_share: float | None
    by_objective: dict[str, int] = {}
    by_prompt_tokens: dict[str, tuple[int, int]] = {}


class ClassSummary(Spec):
    """One tenant's or tier's measured requests, so that nobody is starved behind a good average."""

    offered: int
    finished: int
    metrics: dict[str, Figure]


class PoolSummary(Spec):
    """One group of a cluster's instances in the measured window; ``least_busy`` and ``most_busy`` are instances'."""

    instances: int
    steps: int
    tokens: int
    utilisation: float | None
    least_busy: float
    most_busy: float
    kv_peak_share: float


class RunSummary(Spec):
    """Everything a list, a chart legend or a verdict needs of a run, without its records.

    ``outputs_digest`` is over the token ids of finished requests (None without real tokens), ``lengths_digest`` over
    their numbers of tokens (``output_tokens`` in sum), ``decisions_digest`` chained over the decisions of all
    steps. ``initial_cache_blocks`` were in the prefix cache before the first step, ``observed_hit_share`` of the
    prompt tokens in that of the server which logged the traffic. ``reasons`` counts requests that
    did not finish by ``outcome: stage: reason``. ``longest_gap_causes`` counts warm finished measured requests by what
    caused their longest gap, ``stall_causes`` those of them that stalled. ``within_run_errors`` are standard errors of
    log quantiles by a block bootstrap over the requests of this run: a second opinion, never a gate. ``classes`` is
    keyed ``tenant NAME`` and ``tier NAME`` where there are several. ``pools`` are a cluster's groups of instances.
    ``unsent`` are those of ``outcomes`` that never left the client or never came up before the end.
    ``by_tool`` holds figures by other load tools' formulas, under Headway's names for them.
    ``deployment`` is what a server read back: kind, version and settings in force. ``void`` says why nothing may be
    concluded from the run, though it ended in order.
    """

    schema_version: Literal["headway-summary/1"] = "headway-summary/1"
    run: str
    attempt: int
    arm: str
    repeat: int
    plan_digest: str
    policy_digest: str
    policy: dict[str, Any]
    target: dict[str, Any]
    level: str
    source: str
    fingerprint: dict[str, Any]
    complete: bool
    offered: int
    measured: int
    outcomes: dict[str, int]
    unsent: dict[str, int] = {}
    duration_s: float
    steps: int
    ties: int
    outputs_digest: str | None
    lengths_digest: str | None = None
    output_tokens: int = 0
    decisions_digest: str | None = None
    initial_cache_blocks: int = 0
    observed_hit_share: float | None = None
    reasons: dict[str, int] = {}
    within_run_errors: dict[str, float] = {}
    longest_gap_causes: dict[str, int] = {}
    stall_causes: dict[str, int] = {}
    metrics: dict[str, Figure]
    by_tool: dict[str, dict[str, Figure]] = {}
    tiers: dict[str, TierSummary]
    classes: dict[str, ClassSummary] = {}
    pools: dict[str, PoolSummary] = {}
    cold_requests: int
    deployment: dict[str, Any] = {}
    void: str = ""
    audit: AuditReport
    predicted: Predicted | None = None
    against_model: AgainstModel | None = None
