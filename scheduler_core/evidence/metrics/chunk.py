"""Figures of tokens that came together: stream chunks of a server, accepted drafts of a step."""

from collections.abc import Iterable
from functools import partial

from scheduler_core.evidence.columns import MISSING
from scheduler_core.evidence.metrics.metric import Metric, absent, present, quantile_rule, tail
from scheduler_core.evidence.schema import Absence, Figure
from scheduler_core.evidence.tables.run_tables import RunTables

_GAP = "wait between two chunks of a request's tokens, whatever the second one carried, pooled over warm finished "
_GAP += "measured requests"
_ALONE = "each token came alone"


def chunk_metrics() -> Iterable[Metric]:
    """Waits between chunks under their own name, and tokens a chunk."""
    for share in (0.5, 0.95, 0.99):
        percent = f"p{share * 100:.0f}"
        yield Metric(
            f"chunk_gap_{percent}_ms", "ms", f"{percent} of the {_GAP}", "lower", "request", quantile_rule(share),
            partial(_gap, share),
        )  # fmt: skip
    formula = "output tokens / chunks of warm finished measured requests"
    yield Metric("chunk_tokens_mean", "tokens", formula, "none", "run", "one per run", _tokens)


def _gap(share: float, run: RunTables) -> Figure:
    return absent("ms", Absence.NOT_APPLICABLE, _ALONE) if run.chunks is None else tail(run.chunk_gap_ms, share)


def _tokens(run: RunTables) -> Figure:
    if run.chunks is None:
        return absent("tokens", Absence.NOT_APPLICABLE, _ALONE)
    answers = run.requests.warm_finished & (run.requests.rows["first_token_ns"] != MISSING)
    count = len(run.chunk_gap_ms) + int(answers.sum())  # each answer with a chunk has one more of them than gaps
    if not count:
        return absent("tokens", Absence.NOT_APPLICABLE, "no chunks", 0)
    return present(int(run.requests.rows["output_tokens"][answers].sum()) / count, "tokens", count)
