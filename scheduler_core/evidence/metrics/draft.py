"""Figures of speculative decoding."""

from collections.abc import Callable

from scheduler_core.evidence.fold.drafts import DraftTotals
from scheduler_core.evidence.metrics.metric import Better, Metric, absent, defined
from scheduler_core.evidence.schema import Absence, Figure
from scheduler_core.evidence.tables.run_tables import RunTables


def draft_metrics() -> list[Metric]:
    """The metrics of drafts and what came of them; they do not apply where the policy drafts nothing."""
    return [
        _of_drafts("drafted_tokens", "tokens", "tokens drafted and checked in the window", "none",
                   lambda totals: float(totals.drafted)),
        _of_drafts("acceptance_length_mean", "tokens", "(accepted tokens + drafts) / drafts: what a request emits in a "
                   "step that checks its draft", "higher",
                   lambda totals: (totals.accepted + totals.drafts) / totals.drafts if totals.drafts else None),
        _of_drafts("draft_waste_share", "share", "drafted tokens that were not accepted / drafted tokens", "lower",
                   lambda totals: 1 - totals.accepted / totals.drafted if totals.drafted else None),
    ]  # fmt: skip


def _of_drafts(
    name: str, unit: str, formula: str, better: Better, value: Callable[[DraftTotals], float | None]
) -> Metric:
    def compute(run: RunTables) -> Figure:
        totals = run.steps.drafts
        if not totals.steps:
            return absent(unit, Absence.NOT_APPLICABLE, "nothing was drafted by policy")
        return defined(value(totals), unit, "no draft was checked")

    return Metric(name, unit, formula, better, "run", "one per run", compute)
