"""Which requests of a run were slowest: where somebody who asks why will look first."""

from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from scheduler_core.evidence.tables.tables import read_table

MEASURES = ("e2e_ms", "ttft_ms", "longest_gap_ms", "queue_wait_ms")
_SHOWN = ("request", "tier", "prompt_tokens", "output_tokens", "preemptions", *MEASURES, "longest_gap_cause")


def slowest(requests: Path, by: str = MEASURES[0], *, most: int = 20) -> list[dict[str, Any]]:
    """Rows of a ``requests.parquet`` with the largest ``by``, one of `MEASURES`, largest first.

    Requests without that figure are left out. `InputError` for a file that is no such table.
    """
    table = read_table(requests, _SHOWN)
    table = table.filter(pc.is_valid(table[by]))
    rows: list[dict[str, Any]] = (
        table.sort_by([(by, "descending"), ("request", "ascending")]).slice(0, most).to_pylist()
    )
    return rows
