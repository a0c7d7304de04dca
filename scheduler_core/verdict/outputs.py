"""Token ids of stored runs, for comparing outputs up to reported near-ties."""

from pathlib import Path

from scheduler_core.evidence.tables.tables import read_table
from scheduler_core.verdict.comparable import Output


def read_outputs(path: Path) -> dict[int, Output]:
    """Outputs by request from an ``outputs.parquet``."""
    rows = read_table(path).to_pylist()
    return {row["request"]: Output(row["token_ids"], row["tie_positions"]) for row in rows}
