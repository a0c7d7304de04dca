"""Reading the token ids of a run, for comparing outputs place by place."""

from pathlib import Path

import pyarrow.parquet as pq

from scheduler_core.verdict.comparable import Output

COLUMNS = ("request", "token_ids", "tie_positions")


def read_outputs(path: Path) -> dict[int, Output]:
    """``outputs.parquet`` of a run: token ids and near-tie positions by request."""
    table = pq.read_table(path, columns=list(COLUMNS))
    requests, tokens, ties = (table.column(name).to_pylist() for name in COLUMNS)
    return {
        request: Output(tokens=found, ties=near) for request, found, near in zip(requests, tokens, ties, strict=True)
    }
