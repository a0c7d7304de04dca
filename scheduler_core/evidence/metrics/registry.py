"""The metric registry: each figure of a run with its name, unit, formula, direction, scope and sample rule.

The same entries feed summaries, gates, tooltips, exports and docs, so a figure cannot mean two things.
"""

from scheduler_core.evidence.metrics.chunk import chunk_metrics
from scheduler_core.evidence.metrics.client import client_metrics
from scheduler_core.evidence.metrics.cost import cost_metrics
from scheduler_core.evidence.metrics.draft import draft_metrics
from scheduler_core.evidence.metrics.fairness import fairness_metrics
from scheduler_core.evidence.metrics.handoff import handoff_metrics, migration_metrics
from scheduler_core.evidence.metrics.latency import latency_metrics
from scheduler_core.evidence.metrics.metric import Metric
from scheduler_core.evidence.metrics.parallel import parallel_metrics
from scheduler_core.evidence.metrics.run import run_metrics
from scheduler_core.evidence.metrics.scaling import outage_metrics, pool_metrics, scaling_metrics
from scheduler_core.evidence.schema import Figure
from scheduler_core.evidence.tables.run_tables import RunTables


def registry(*metrics: Metric) -> dict[str, Metric]:
    """By name. ``ValueError`` when one is defined twice: extensions add figures and never redefine one (R22)."""
    found: dict[str, Metric] = {}
    for metric in metrics:
        if metric.name in found:
            raise ValueError(f"R22: the figure {metric.name} is defined twice")
        found[metric.name] = metric
    return found


METRICS: dict[str, Metric] = registry(
    *latency_metrics(),
    *run_metrics(),
    *handoff_metrics(),
    *migration_metrics(),
    *parallel_metrics(),
    *draft_metrics(),
    *scaling_metrics(),
    *pool_metrics(),
    *outage_metrics(),
    *chunk_metrics(),
    *client_metrics(),
    *fairness_metrics(),
    *cost_metrics(),
)


def compute_all(run: RunTables) -> dict[str, Figure]:
    """Every metric of the registry over one run."""
    return {name: metric.compute(run) for name, metric in METRICS.items()}
