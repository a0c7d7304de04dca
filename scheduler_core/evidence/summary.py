"""What the summary of a run has whether its steps were recorded or a client looked on from outside."""

from typing import Any

from scheduler_core.evidence.bootstrap import within_run_errors
from scheduler_core.evidence.formulas.tools import by_tool
from scheduler_core.evidence.metrics.classes import class_summaries
from scheduler_core.evidence.tables.run_tables import RunTables
from scheduler_core.evidence.tables.slo import tier_summaries
from scheduler_core.types.records import RunFinished


def shared_fields(tables: RunTables, finished: RunFinished | None, place: tuple[str, int]) -> dict[str, Any]:
    """Fields of a `RunSummary` by name: what was run, for how long, and what its requests say.

    ``finished`` is None when the records stop before the run's end; ``place`` is (arm, repeat).
    """
    started, requests = tables.started, tables.requests
    return {
        "run": started.run,
        "attempt": started.attempt,
        "arm": place[0],
        "repeat": place[1],
        "plan_digest": started.plan_digest,
        "policy_digest": started.policy_digest,
        "policy": started.policy,
        "target": started.target,
        "level": started.level,
        "source": started.source,
        "complete": finished is not None and finished.complete,
        "offered": started.offered,
        "measured": int(requests.measured.sum()),
        "duration_s": (finished.at_ns if finished is not None else tables.window.end_ns) / 1e9,
        "lengths_digest": requests.lengths_digest(),
        "output_tokens": requests.finished_tokens(),
        "observed_hit_share": started.observed_hit_share,
        "reasons": requests.reasons(),
        "within_run_errors": within_run_errors(requests),
        "longest_gap_causes": requests.longest_gap_causes(requests.warm_finished),
        "stall_causes": requests.longest_gap_causes(tables.stalled),
        "by_tool": by_tool(tables),
        "tiers": tier_summaries(requests, tables.tiers),
        "classes": class_summaries(requests, tables.slowdown),
        "cold_requests": int(requests.cold.sum()),
    }
