"""Token ids of stored runs, for comparing outputs up to reported near-ties."""

from collections.abc import Callable, Mapping
from pathlib import Path

from scheduler_core.evidence.tables import read_table
from scheduler_core.verdict.comparable import Output, Outputs


def read_outputs(path: Path) -> dict[int, Output]:
    """Outputs by request from an ``outputs.parquet``."""
    rows = read_table(path).to_pylist()
    return {row["request"]: Output(row["token_ids"], row["tie_positions"]) for row in rows}


def outputs_in(folder_of: Callable[[str], Path]) -> Outputs:
    """What `decide` reads outputs with, where ``folder_of`` gives the folder of a run's files."""

    def read(run: str) -> Mapping[int, Output]:
        path = folder_of(run) / "outputs.parquet"
        return read_outputs(path) if path.exists() else {}

    return read
