"""Evidence tables as CSV: the same columns with the same units in their names, absences in columns of their own."""

from pathlib import Path

from scheduler_core.evidence.tables.tables import open_table
from scheduler_core.files import whole


def write_csv(table: Path, target: Path) -> Path:
    """Write the Parquet table ``table`` to ``target``, whole or not at all; an absent value is an empty cell."""
    import pyarrow as pa
    from pyarrow import csv

    file = open_table(table)
    flat = pa.schema([pa.field(item.name, _plain(item.type)) for item in file.schema_arrow])
    lists = [item.name for item in file.schema_arrow if pa.types.is_list(item.type)]
    if lists:
        raise ValueError(f"{table.name} holds lists ({', '.join(lists)}) and has no CSV form")
    with whole(target) as partial, csv.CSVWriter(partial, flat) as writer:
        for group in range(file.num_row_groups):
            writer.write_table(file.read_row_group(group).cast(flat))
    return target


def _plain(kind: object) -> object:
    import pyarrow as pa

    return pa.string() if pa.types.is_dictionary(kind) else kind
